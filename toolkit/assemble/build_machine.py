"""The machine as a build of an engine sees it: its GPUs with who is on them, and the host memory it may take."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import psutil

from toolkit.build.trtllm_machine import BuildGpu, Machine
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
