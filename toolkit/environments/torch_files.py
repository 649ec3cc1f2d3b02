"""What torch is, by its files: version.py as text, and the symbols and needs of its libraries."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from toolkit.demangle import Abi, string_abi
from toolkit.environments.loader import Files
from toolkit.environments.model import TorchFacts

MAX_SOURCE_BYTES = 1 << 20
# c10::Error takes a std::string in every release there ever was, so its constructor tells the ABI.
ABI_WITNESSES = ("_ZN3c105ErrorC", "_ZN3c106detail14torchCheckFail", "_ZN3c104warn", "_ZN3c10")
CUDA_LIBRARIES = ("libc10_cuda.so", "libtorch_cuda.so", "libtorch_global_deps.so")
CUDA_MAJOR = re.compile(r"lib(?:cudart|cublas|cublasLt|nvrtc|nvJitLink)\.so\.(\d+)")


def read(folder: Path, files: Files) -> TorchFacts:
    """The facts of a torch whose package folder this is; what a file does not tell is None."""
    said = assignments(folder / "version.py")
    libraries = tuple(sorted((folder / "lib").glob("*.so*")))
    return TorchFacts(
        folder,
        _text(said, "__version__"),
        _text(said, "cuda"),
        abi_of(folder / "lib/libc10.so", files),
        cuda_major(tuple(need for name in CUDA_LIBRARIES for need in files.elf(folder / "lib" / name).needed)),
        libraries,
    )


def _text(said: dict[str, Any], name: str) -> str | None:
    value = said.get(name)
    return value if isinstance(value, str) else None


def assignments(source: Path) -> dict[str, Any]:
    """Names that a Python file sets to constants at its top level; the file is parsed, not run."""
    try:
        with source.open("rb") as file:
            tree = ast.parse(file.read(MAX_SOURCE_BYTES))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    return dict(_constants(tree))


def _constants(tree: ast.Module) -> Iterator[tuple[str, Any]]:
    for node in tree.body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        value = getattr(node, "value", None)
        for target in targets:
            if isinstance(target, ast.Name) and isinstance(value, ast.Constant):
                yield target.id, value.value


def abi_of(library: Path, files: Files) -> Abi | None:
    """The C++11 ABI of libc10, by the functions with a ``std::string`` that it exports."""
    table = files.symbols(library)
    for witness in ABI_WITNESSES:
        for name in table.starting_with(witness, limit=256):
            abi = string_abi(name)
            if abi:
                return abi
    return None


def cuda_major(needed: tuple[str, ...]) -> int | None:
    """The major version of CUDA that needed libraries name; None when none of them tells."""
    return next((int(match[1]) for name in needed if (match := CUDA_MAJOR.fullmatch(name))), None)
