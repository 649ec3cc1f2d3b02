"""What a build and its engine take: workspace of unfused attention, host memory, GPU memory, disk. Pure, but for sizes.

All are lower bounds that a build cannot go under; what they refuse would fail after an hour instead.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from toolkit.build.trtllm_checkpoint import Checkpoint
from toolkit.build.trtllm_machine import BuildGpu, Machine
from toolkit.config.load import LoadedRecipe
from toolkit.config.models import Limits
from toolkit.errors import ToolkitError
from toolkit.units import GIB, format_bytes, parse_bytes

_DTYPE_BYTES = {"float32": 4}
_HALF_BYTES, _FLOAT_BYTES = 2, 4
# Of the interpreter with TensorRT's builder kernels: a public build log of 0.9 says 'CPU +1750 MiB' for them alone.
_WORKER_BYTES = 2 * GIB
# A rank's weights, and its engine while that is serialised.
_COPIES = 2
# No GPU has more (B300); a workspace over this fits nowhere, whatever GPU the engine is for.
LARGEST_GPU_BYTES = 288 * GIB


@dataclass(frozen=True)
class Estimate:
    """Bytes. ``weights_bytes`` of all ranks, ``rank_bytes`` of the largest; None: not known (yet)."""

    weights_bytes: int | None
    rank_bytes: int | None
    workspace_bytes: int | None

    def host_bytes(self, workers: int) -> int | None:
        """Host memory of so many ranks built at once."""
        return None if self.rank_bytes is None else workers * (_COPIES * self.rank_bytes + _WORKER_BYTES)


def unfused_workspace_bytes(checkpoint: Checkpoint, limits: Limits) -> int | None:
    """Workspace that the attention plugin of a rank takes without fused attention; None: the heads are not known.

    For a full batch of the longest prompts: scores in the model's type and in float32 for each head of the rank, and a
    mask. Buffers that grow with the length alone are left out.

    Source: GPTAttentionPluginCommon::getWorkspaceSizeForContext, gptAttentionCommon.cpp (0.8 to 0.16).
    """
    if checkpoint.num_heads is None:
        return None
    size = _DTYPE_BYTES.get(checkpoint.dtype, _HALF_BYTES)
    heads = -(-checkpoint.num_heads // checkpoint.tp_size)
    square = limits.max_batch_size * limits.max_input_len**2
    return square * heads * (size + _FLOAT_BYTES) + square * size


def estimate(checkpoint: Checkpoint, limits: Limits, *, unfused: bool) -> Estimate:
    """The estimate for a checkpoint as it lies there."""
    sizes = [path.stat().st_size for path in checkpoint.rank_files() if path.is_file()]
    workspace = unfused_workspace_bytes(checkpoint, limits) if unfused else None
    return Estimate(sum(sizes) or None, max(sizes, default=None), workspace)


def check_workspace(loaded: LoadedRecipe, needed: Estimate, gpus: Sequence[BuildGpu]) -> None:
    """Raises ToolkitError when the unfused workspace is over its budget: the recipe's, the GPU's, or any GPU's."""
    if needed.workspace_bytes is None:
        return
    budget_bytes, whose = _budget(loaded, needed, gpus)
    if needed.workspace_bytes <= budget_bytes:
        return
    limits = loaded.model.limits
    raise ToolkitError(
        f"without fused attention, {limits.max_batch_size} prompts of {limits.max_input_len} tokens need "
        f"{format_bytes(needed.workspace_bytes)} of workspace on each GPU; {whose} {format_bytes(budget_bytes)}",
        loaded.where("limits.max_input_len"),
        "Lower 'max_input_len' (it counts by its square) or 'max_batch_size', or set 'fmha: enable'.",
        code="workspace",
        resource="gpu_memory",
        needed=needed.workspace_bytes,
        available=budget_bytes,
    )


def _budget(loaded: LoadedRecipe, needed: Estimate, gpus: Sequence[BuildGpu]) -> tuple[int, str]:
    asked = workspace_budget_bytes(loaded)
    memory = [gpu.memory_bytes for gpu in gpus if gpu.memory_bytes is not None]
    bounds = [(LARGEST_GPU_BYTES, "no GPU has more than")]
    if memory:
        bounds.append((max(0, min(memory) - (needed.rank_bytes or 0)), "beside its weights a GPU here has"))
    if asked is not None:
        bounds.append((asked, "'workspace_budget' is"))
    return min(bounds)


def workspace_budget_bytes(loaded: LoadedRecipe) -> int | None:
    """The recipe's ``options.workspace_budget``.

    Raises: ToolkitError when it is no size.
    """
    value = loaded.model.options.get("workspace_budget")
    try:
        return None if value is None else parse_bytes(str(value))
    except ValueError as error:
        raise ToolkitError(str(error), loaded.where("options.workspace_budget"), code="options") from None


def fitting_workers(needed: Estimate, workers: int, available_bytes: int | None) -> int:
    """How many ranks host memory lets be built at once, at most ``workers``.

    Raises: ToolkitError when there is not enough for one.
    """
    one = needed.host_bytes(1)
    if one is None or available_bytes is None:
        return workers
    if one > available_bytes:
        raise ToolkitError(
            f"building a rank of {format_bytes(needed.rank_bytes or 0)} needs about {format_bytes(one)} of host "
            f"memory; {format_bytes(available_bytes)} are available",
            "host",
            "Free memory, raise the container's limit, or convert the model for a larger tp_size.",
            code="host_memory",
            resource="host_memory",
            needed=one,
            available=available_bytes,
        )
    return max(1, min(workers, available_bytes // one))


def check_gpu_memory(needed: Estimate, gpus: Sequence[BuildGpu]) -> None:
    """Raises ToolkitError when a rank's weights do not fit a GPU."""
    for gpu in gpus:
        if gpu.memory_bytes is not None and needed.rank_bytes is not None and needed.rank_bytes > gpu.memory_bytes:
            raise ToolkitError(
                f"a rank's weights are {format_bytes(needed.rank_bytes)}; GPU {gpu.index} has "
                f"{format_bytes(gpu.memory_bytes)}",
                f"GPU {gpu.index} ({gpu.uuid})",
                "Convert the model for a larger tp_size.",
                code="gpu_memory",
                resource="gpu_memory",
                needed=needed.rank_bytes,
                available=gpu.memory_bytes,
            )


def check_disk(needed_bytes: int | None, place: Path, what: str) -> None:
    """Raises ToolkitError when a place has no room for so much."""
    existing = next(folder for folder in (place, *place.absolute().parents) if folder.exists())
    free_bytes = shutil.disk_usage(existing).free
    if needed_bytes is not None and needed_bytes > free_bytes:
        raise ToolkitError(
            f"{what} needs about {format_bytes(needed_bytes)}; {format_bytes(free_bytes)} are free",
            str(place),
            "Free some space ('coexist engines prune' helps), or point COEXIST_HOME at a larger disk.",
            code="no_space",
            resource="disk",
            needed=needed_bytes,
            available=free_bytes,
        )


def check_machine(needed: Estimate, gpus: Sequence[BuildGpu], machine: Machine | None, workers: int) -> int:
    """The workers that fit this machine.

    Raises: ToolkitError when GPU or host memory is not enough.
    """
    check_gpu_memory(needed, gpus)
    return fitting_workers(needed, workers, machine.available_bytes if machine else None)
