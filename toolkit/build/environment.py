"""What the environment of an engine holds, and the environment variables that its build steps get."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toolkit.errors import ToolkitError
from toolkit.runtimes.builtin import RUN
from toolkit.runtimes.environment import DEFAULT_PATH

# What compilers, libraries and the GPU driver may need of this machine; nothing else gets in.
_INHERITED = (
    *("HOME", "USER", "TMPDIR", "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_VISIBLE_DEVICES"),
    "PYTHONDONTWRITEBYTECODE",
)
_FACTS_TIMEOUT_S = 60.0


def base_env(python: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that every step gets."""
    return {
        **{name: environ[name] for name in _INHERITED if name in environ},
        "PATH": f"{python.parent}:{environ.get('PATH') or DEFAULT_PATH}",
        "LANG": "C.UTF-8",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "PYTHONUNBUFFERED": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }


def step_env(python: Path, environ: Mapping[str, str], *, cxx: str, cache_dir: Path, threads: int) -> dict[str, str]:
    """The variables of a step that computes or compiles, with so many threads for it."""
    return {
        **base_env(python, environ),
        "CXX": cxx,
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "TORCHINDUCTOR_COMPILE_THREADS": str(threads),
        "TORCHINDUCTOR_CACHE_DIR": str(cache_dir / "inductor"),
        "TRITON_CACHE_DIR": str(cache_dir / "triton"),
    }


def read_facts(python: Path, environ: Mapping[str, str]) -> dict[str, Any]:
    """Versions, instruction sets and GPU of an environment, read by its own interpreter without importing torch.

    Raises: ToolkitError when the interpreter cannot be started or is too old.
    """
    argv = [str(python), str(RUN), "facts"]
    env = {**base_env(python, environ), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            argv, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=_FACTS_TIMEOUT_S, check=False
        )
        facts = json.loads(done.stdout) if done.returncode == 0 else None
    except (OSError, subprocess.TimeoutExpired, ValueError) as error:
        raise ToolkitError(f"cannot be asked: {error}", str(python), "Check 'environments:'.", code="python") from error
    if not isinstance(facts, dict):
        last = (done.stderr.decode("utf-8", "replace").strip().splitlines() or ["no message"])[-1]
        raise ToolkitError(
            f"cannot run coexist's steps: {last}", str(python), "Python 3.10 or newer is needed.", code="python"
        )
    return facts


def require_packages(facts: Mapping[str, Any], python: Path) -> None:
    """Raises ToolkitError when a package that a build needs is missing."""
    missing = [name for name in ("torch", "safetensors", "tokenizers", "numpy") if not facts["packages"].get(name)]
    if missing:
        raise ToolkitError(
            f"this environment has no {', '.join(missing)}",
            str(python),
            f"Install it there: {python} -m pip install {' '.join(missing)}",
            code="packages",
        )


def allowed_cores() -> int:
    """Logical CPUs that this process may use."""
    return len(os.sched_getaffinity(0))
