"""Small archives that look like compiled packages, their libraries made by the C++ compiler of this machine."""

from __future__ import annotations

import io
import subprocess
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

UNFUSED_CALL = "aoti_torch_cpu_bmm_out"
FUSED_CALL = "aoti_torch_cpu__scaled_dot_product_flash_attention_for_cpu"


def library(folder: Path, calls: Sequence[str], defines: Sequence[str] = ()) -> bytes:
    """A shared library that calls these functions, undefined in it, and defines those."""
    declared = "".join(f"extern void {name}();\n" for name in calls)
    called = "".join(f"  {name}();\n" for name in calls)
    defined = "".join(f"void {name}() {{}}\n" for name in defines)
    (folder / "lib.c").write_text(f"{declared}{defined}void run() {{\n{called}}}\n")
    argv = ["gcc", "-shared", "-fPIC", "-nostdlib", "-o", folder / "lib.so", folder / "lib.c"]
    subprocess.run(argv, check=True, capture_output=True)
    return (folder / "lib.so").read_bytes()


def archive(members: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for name, content in members.items():
            file.writestr(f"decode/data/aotinductor/model/{name}", content)
    return buffer.getvalue()
