"""What follows from turning fused attention off: what is switched off with it, and why."""

from __future__ import annotations

from collections.abc import Mapping

from toolkit.units import format_bytes


def for_unfused(max_input_len: int, workspace_bytes: int | None) -> tuple[Mapping[str, str], ...]:
    """The guards of an engine without fused attention, as ``build --json`` shows them.

    ``workspace_bytes``: what the scores of the longest prompt take; None before that is known.
    """
    scores = f", {format_bytes(workspace_bytes)} here" if workspace_bytes is not None else ""
    return (
        {
            "id": "kv_cache_reuse_off",
            "why": "without fused attention a prompt that starts behind cached blocks is not proven right",
        },
        {
            "id": "chunked_prefill_off",
            "why": "a chunk starts behind the chunks before it, which is the same case as a cached prefix",
        },
        {"id": "draft_tokens_off", "why": "several tokens of one slot in one decode step need fused attention's masks"},
        {
            "id": "max_input_len_bounded",
            "why": f"scores take memory by the square of the prompt's length{scores}: at most {max_input_len} tokens",
        },
    )
