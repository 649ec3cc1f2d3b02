"""The machine as a build of an engine sees it: its GPUs with who is on them, and the host memory it may take."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from toolkit.assemble.paths import EnginePaths
from toolkit.build.trtllm_machine import BuildGpu, Machine
from toolkit.config import load
from toolkit.config.load import LoadedDeployment
from toolkit.errors import ToolkitError
from toolkit.host.model import Gpu, Holder, Host

_DRIVER = "driver"


def of(host: Host, free_bytes: Callable[[], int] = lambda: int(psutil.virtual_memory().available)) -> Machine:
    """What a host offers a build; only GPUs that CUDA_VISIBLE_DEVICES leaves are in it."""
    limits = [limit for limit in (host.limits.memory_bytes, free_bytes()) if limit is not None]
    return Machine(tuple(each for gpu in host.gpus for each in _devices(gpu)), min(limits, default=None))


def _devices(gpu: Gpu) -> Iterator[BuildGpu]:
    if gpu.mig is None:
        holders = _held_by(gpu.holders)
        yield BuildGpu(gpu.index, gpu.uuid, gpu.name, gpu.compute_capability, gpu.memory_bytes, holders)
    for part in gpu.mig or ():
        name = f"{gpu.name} {part.profile}"
        yield BuildGpu(
            gpu.index, part.uuid, name, gpu.compute_capability, part.memory_bytes, _held_by(part.holders)
        )  # fmt: skip


def _held_by(holders: tuple[Holder, ...]) -> tuple[str, ...]:
    """Processes as a person reads them; what the driver keeps for itself is none."""
    real = [holder for holder in holders if holder.name != _DRIVER or holder.pid is not None]
    return tuple(f"{each.name or 'a process of another container'}{_pid(each)}" for each in real)


def _pid(holder: Holder) -> str:
    return f" (pid {holder.pid})" if holder.pid is not None else ""


def engine_as_written(deployment: LoadedDeployment, name: str) -> EnginePaths:
    """The recipe and interpreter of an engine for a look at what would be; the interpreter need not be there."""
    use, environments = deployment.model.engines[name], deployment.model.environments
    python = environments[use.environment].interpreter if use.environment else Path(sys.executable)
    if use.recipe is None:
        what = "an adopted engine is what it is: it cannot be looked at as built by another release"
        where = deployment.where(f"engines.{name}.adopted")
        raise ToolkitError(what, where, "Remove --trtllm-version, or name another with --engine.", code="adopted")
    recipe = load.resolve(deployment.file, use.recipe, deployment.where(f"engines.{name}.recipe"))
    return EnginePaths(load.recipe(recipe), python)
