"""What a compiled kernel depends on beside its source, as one short name: caches of one name may be shared by boots."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from toolkit.config.models import Environment
from toolkit.environments import layout
from toolkit.host.model import Host

# Packages whose release changes what is compiled, or how; others may come and go without a cold start.
_COMPILING = re.compile(
    r"(torch|triton|pytorch|flash|vllm|sglang|sgl|tensorrt|transformers|nvidia|cuda|deep_?gemm|xformers|quack|apache_tvm"
    r"|tilelang|cupy|numba|jax|accelerate)",
    re.IGNORECASE,
)
_FLAGS = re.compile(r"^(?:flags|Features)\s*:\s*(.*)$", re.MULTILINE)
CPUINFO = Path("/proc/cpuinfo")


def cache_key(
    python: Path, environment: Environment | None, host: Host, device_uuids: Iterable[str], cpuinfo: Path = CPUINFO
) -> str:
    """The fingerprint of an environment on these devices: 16 hexadecimal digits.

    Releases of Python and of what compiles, or the image; driver and GPU models, or the processor's instruction sets.
    """
    facts = [_software(python, environment, host), _hardware(host, frozenset(device_uuids), cpuinfo)]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def _software(python: Path, environment: Environment | None, host: Host) -> list[object]:
    if host.recorded:
        return ["recorded"]
    if environment is not None and environment.image is not None:
        return [environment.image, dict(environment.versions)]
    found = layout.locate(python)
    names = (name for folder in layout.folders(found, {}) for name in _names(folder.path))
    return [found.python_version, sorted({name for name in names if _COMPILING.match(name)})]


def _names(folder: Path) -> list[str]:
    """``NAME-VERSION.dist-info`` of every package in it."""
    with suppress(OSError):
        return [name for name in os.listdir(folder) if name.endswith((".dist-info", ".egg-info"))]  # noqa: PTH208
    return []


def _hardware(host: Host, uuids: frozenset[str], cpuinfo: Path) -> list[object]:
    """GPU code depends on the GPU and its driver; code for the processor on what that can do."""
    gpus = [gpu for gpu in host.gpus if uuids & {gpu.uuid, *(slice_.uuid for slice_ in gpu.mig or ())}]
    models = sorted({(gpu.name or "", gpu.compute_capability or "") for gpu in gpus})
    driver = [host.driver_version, host.cuda_driver_version] if models else []
    return [platform.machine(), [list(model) for model in models], driver, [] if host.recorded else _flags(cpuinfo)]


def _flags(cpuinfo: Path) -> str:
    with suppress(OSError):
        match = _FLAGS.search(cpuinfo.read_text(errors="replace"))
        return " ".join(sorted(set(match[1].split()))) if match else ""
    return ""
