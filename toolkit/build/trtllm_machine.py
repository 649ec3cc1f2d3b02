"""The machine that builds, as far as a build must know it; made by whoever reads hosts."""

from __future__ import annotations

from dataclasses import dataclass

from toolkit.errors import ToolkitError
from toolkit.facts.model import capability


@dataclass(frozen=True)
class BuildGpu:
    """A GPU that could build. ``holders``: processes that have memory of it, as a person reads them."""

    index: int
    uuid: str
    name: str | None
    compute_capability: str | None
    memory_bytes: int | None
    holders: tuple[str, ...] = ()


@dataclass(frozen=True)
class Machine:
    """Unknown is None. ``available_bytes``: host memory that a build may take."""

    gpus: tuple[BuildGpu, ...] = ()
    available_bytes: int | None = None


def target(machine: Machine | None) -> BuildGpu | None:
    """The GPU that an engine is built for: the first that is visible; None: there is none, or it is unknown."""
    return machine.gpus[0] if machine and machine.gpus else None


def alike(machine: Machine | None) -> tuple[BuildGpu, ...]:
    """The target and the GPUs of its model, on which its ranks can be built."""
    first = target(machine)
    if machine is None or first is None:
        return ()
    return tuple(gpu for gpu in machine.gpus if _kind(gpu) == _kind(first))


def _kind(gpu: BuildGpu) -> tuple[str | None, str | None]:
    return gpu.name, gpu.compute_capability


def free_gpus(machine: Machine | None) -> tuple[BuildGpu, ...]:
    """Those of the target's model that no process uses; none where the machine has none.

    Raises: ToolkitError when all of them are in use.
    """
    candidates = alike(machine)
    free = tuple(gpu for gpu in candidates if not gpu.holders)
    if candidates and not free:
        busy = "; ".join(f"GPU {gpu.index}: {', '.join(gpu.holders)}" for gpu in candidates)
        raise ToolkitError(
            f"no GPU is free to build on ({busy}); an engine is built where nothing serves",
            "host",
            "Stop what runs there, or name a free GPU in CUDA_VISIBLE_DEVICES.",
            code="gpu_busy",
            resource="gpus",
            needed=1,
            available=0,
        )
    return free


def sm(gpu: BuildGpu | None) -> int | None:
    """A GPU's compute capability as a number; None when it is unknown."""
    return capability(gpu.compute_capability) if gpu else None


def notes(machine: Machine | None) -> tuple[str, ...]:
    """What a person should know of the GPU the engine is for."""
    first = target(machine)
    if machine is None:
        return ()
    if first is None:
        return ("no GPU is seen here: for which GPU this engine is cannot be said",)
    if len(alike(machine)) < len(machine.gpus):
        return (f"the GPUs here differ; this engine is for {first.name} (GPU {first.index})",)
    return ()
