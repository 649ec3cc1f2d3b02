"""What an engine of TensorRT-LLM cannot do when it has no fused, or no paged, context attention. Pure.

What follows when it is served is in ``runtimes.trtllm_guards``.
"""

from __future__ import annotations

from collections.abc import Mapping

from toolkit.build.trtllm_readback import EngineConfig
from toolkit.config.models import Limits
from toolkit.runtimes.trtllm_guards import CHUNKED_PREFILL, DRAFT_TOKENS, KV_REUSE
from toolkit.units import format_bytes


def for_unfused(limits: Limits, workspace_bytes: int | None) -> tuple[Mapping[str, str], ...]:
    """The guards of ``fmha: disable``, as ``build --json`` shows them; ``workspace_bytes`` None: not known."""
    behind = "starts behind blocks that unfused attention does not read: its answer would be wrong, and nobody told"
    size = format_bytes(workspace_bytes) if workspace_bytes is not None else "an unknown size (the heads are not known)"
    rows = {
        "kv_cache_reuse_off": f"a prompt with a cached prefix {behind}",
        "chunked_prefill_off": f"the second chunk of a prompt {behind}",
        "draft_tokens_off": f"a check of draft tokens {behind}",
        "max_input_len_bounded": f"prompts are at most {limits.max_input_len} tokens: scores take memory by the square",
        "workspace_estimated": f"{limits.max_batch_size} such prompts take {size} of workspace on each GPU",
    }
    return tuple({"id": name, "why": why} for name, why in rows.items())


def features(engine: EngineConfig) -> Mapping[str, bool]:
    """What may be switched on when the engine is served."""
    able = engine.fmha != "disable" and engine.plugin("use_paged_context_fmha") is True
    return {KV_REUSE: able, CHUNKED_PREFILL: able, DRAFT_TOKENS: able}
