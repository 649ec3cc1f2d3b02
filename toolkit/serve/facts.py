"""What an engine's build depends on in this environment and on this machine, read without importing torch."""

from __future__ import annotations

import argparse
import ctypes
import importlib.metadata
import importlib.util
import json
import platform
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from toolkit.serve.isa import cpu_features

_PACKAGES = ("torch", "triton", "transformers", "safetensors", "tokenizers", "numpy")
# cuda.h: CUdevice_attribute_enum.
_COMPUTE_CAPABILITY_MAJOR, _COMPUTE_CAPABILITY_MINOR = 75, 76


def package_versions() -> dict[str, str | None]:
    """Version by package of what takes part in a build; None where it is not installed."""
    return {name: _version(name) for name in _PACKAGES}


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def torch_cuda() -> str | None:
    """The CUDA release that the installed torch is made for; None for a CPU-only one, or without torch."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    version = Path(spec.origin).with_name("version.py")
    match = re.search(r"^cuda[^=]*= '([^']+)'", version.read_text(), re.MULTILINE) if version.is_file() else None
    return match[1] if match else None


def compute_capability(driver: str = "libcuda.so.1") -> str | None:
    """The first visible GPU's, such as ``9.0``; None without a GPU or a driver. Makes no CUDA context."""
    try:
        cuda = ctypes.CDLL(driver)
    except OSError:
        return None
    device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    calls: tuple[Callable[[], int], ...] = (
        lambda: cuda.cuInit(0),
        lambda: cuda.cuDeviceGet(ctypes.byref(device), 0),
        lambda: cuda.cuDeviceGetAttribute(ctypes.byref(major), _COMPUTE_CAPABILITY_MAJOR, device),
        lambda: cuda.cuDeviceGetAttribute(ctypes.byref(minor), _COMPUTE_CAPABILITY_MINOR, device),
    )
    return f"{major.value}.{minor.value}" if all(call() == 0 for call in calls) else None


def main(argv: Sequence[str]) -> int:
    """Prints one JSON object and returns 0."""
    argparse.ArgumentParser(prog="run.py facts").parse_args(argv)
    facts = {
        "python": platform.python_version(),
        "packages": package_versions(),
        "torch_cuda": torch_cuda(),
        "machine": platform.machine(),
        "cpu_features": cpu_features(),
        "compute_capability": compute_capability(),
    }
    sys.stdout.write(json.dumps(facts) + "\n")
    return 0
