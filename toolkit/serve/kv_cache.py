"""How much KV cache an engine gets: slots that decode together, and blocks for prefixes that outlive them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from toolkit.errors import ToolkitError
from toolkit.units import format_bytes


@dataclass(frozen=True)
class KvSizes:
    """``slots`` whole sequences, and ``blocks`` of the prefix store."""

    slots: int
    blocks: int


def bytes_per_token(info: Mapping[str, Any], itemsize: int) -> int:
    """Bytes of keys and values of one token, in all layers."""
    kv = info["kv_cache"]
    return int(2 * kv["layers"] * kv["heads"] * kv["head_dim"] * itemsize)


def workspace_bytes(info: Mapping[str, Any]) -> int:
    """Room beside weights and KV cache: an upper bound of what a step's activations and logits take, float32."""
    limits, decoder = info["limits"], info["decoder"]
    width = 3 * decoder["intermediate_size"] + 8 * decoder["hidden_size"]
    scores = info["unfused_workspace_bytes"] if info["fmha"] == "disable" else 0
    return int(4 * (limits["max_input_len"] * width + 2 * limits["max_batch_size"] * info["vocab_size"]) + scores)


def divide(info: Mapping[str, Any], itemsize: int, budget_bytes: int | None) -> KvSizes:
    """What fits into the budget: all slots first, then as many blocks again for prefixes where they are reused.

    ``budget_bytes`` None: everything. Raises: ToolkitError when not even one slot fits.
    """
    kv, wanted = info["kv_cache"], info["limits"]["max_batch_size"]
    token_bytes = bytes_per_token(info, itemsize)
    slot_bytes, block_bytes = kv["length"] * token_bytes, kv["block_tokens"] * token_bytes
    slots = wanted if budget_bytes is None else min(wanted, max(0, budget_bytes) // slot_bytes)
    if slots < 1:
        raise ToolkitError(
            f"the KV cache of one sequence takes {format_bytes(slot_bytes)}, "
            f"the budget leaves {format_bytes(max(0, budget_bytes or 0))}",
            hint="Raise gpu_memory, or lower limits.max_seq_len in the recipe.",
            code="gpu_memory",
        )
    blocks = slots * kv["length"] // kv["block_tokens"] if kv["reuse"] else 0
    if budget_bytes is not None:
        blocks = min(blocks, (budget_bytes - slots * slot_bytes) // block_bytes)
    return KvSizes(slots, blocks)
