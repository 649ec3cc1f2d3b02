"""Writes ``requirements/lock-pyXY.txt``: the versions pip resolves today for the interpreter that runs this.

Nothing is installed. Names and versions only: which index serves them is the user's business, and a local version
label (the ``+cpu`` of a PyTorch build) is left out, and so are the CUDA packages that only some builds of PyTorch
bring along, so that every build of that version fits.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PINS = ROOT / "requirements" / "pins.txt"
OWN_NAME = "trtllm-coexist"
OF_A_TORCH_BUILD = re.compile(r"nvidia-(?!ml-py)|cuda-|triton$")
HEADER = "# Made by 'make lock'. Versions the tests ran with, used as pip constraints for this Python version.\n"


def resolved() -> dict[str, Any]:
    """pip's installation report for the ``dev`` extra."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        options = ["--quiet", "--dry-run", "--ignore-installed", "--report", str(report), "-c", str(PINS)]
        subprocess.run([sys.executable, "-m", "pip", "install", *options, f"{ROOT}[dev]"], check=True)
        found: dict[str, Any] = json.loads(report.read_text(encoding="utf-8"))
        return found


def lines(report: dict[str, Any]) -> list[str]:
    """``name==version`` of everything but this project, sorted."""
    packages = (entry["metadata"] for entry in report["install"])
    pins = {p["name"].lower().replace("_", "-"): p["version"].partition("+")[0] for p in packages}
    return [f"{n}=={v}" for n, v in sorted(pins.items()) if n != OWN_NAME and not OF_A_TORCH_BUILD.match(n)]


def main() -> None:
    version = f"{sys.version_info.major}{sys.version_info.minor}"
    file = ROOT / "requirements" / f"lock-py{version}.txt"
    text = HEADER + "\n".join(lines(resolved())) + "\n"
    file.parent.mkdir(exist_ok=True)
    file.write_text(text, encoding="utf-8")
    print(f"wrote {file.relative_to(ROOT)}", file=sys.stderr)


if __name__ == "__main__":
    main()
