"""What an engine of TensorRT-LLM cannot do when it has no fused, or no paged, context attention. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from toolkit.build.trtllm_readback import EngineConfig
from toolkit.config.models import Limits
from toolkit.errors import ToolkitError
from toolkit.units import format_bytes

KV_REUSE, CHUNKED_PREFILL, DRAFT_TOKENS = "kv_cache_reuse", "chunked_prefill", "draft_tokens"
# How servers spell what needs paged context attention, by the last part of the setting's name.
SPELLINGS = {
    "enable_block_reuse": KV_REUSE,
    "enable_kv_cache_reuse": KV_REUSE,
    "enable_chunked_prefill": CHUNKED_PREFILL,
    "enable_chunked_context": CHUNKED_PREFILL,
    "speculative_config": DRAFT_TOKENS,
    "speculative_model": DRAFT_TOKENS,
    "speculative_decoding_mode": DRAFT_TOKENS,
    "max_draft_len": DRAFT_TOKENS,
}
_OFF_WORDS = ("", "0", "false", "no", "off", "none", "disable")
_WHY = {
    KV_REUSE: "reads cached blocks of earlier prompts",
    CHUNKED_PREFILL: "starts a chunk behind the chunks before it",
    DRAFT_TOKENS: "checks several tokens behind a cached prefix at once",
}


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


def asked_features(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Setting and feature of each serving flag that asks for one; settings may be nested, names have dashes or not."""
    for key, value in settings.items():
        name = str(key).lstrip("-").replace("-", "_")
        feature = SPELLINGS.get(name)
        if feature and value is not None and str(value).lower() not in _OFF_WORDS:
            yield f"{prefix}{key}", feature
        elif isinstance(value, Mapping):
            yield from asked_features(value, f"{prefix}{key}.")


def refused_features(
    able: Mapping[str, bool], settings: Mapping[str, Any], where: str | None = None
) -> tuple[ToolkitError, ...]:
    """A fault for each serving flag that needs paged context attention on an engine that was built without it."""
    return tuple(
        ToolkitError(
            f"'{key}' {_WHY[feature]}, and this engine was built without paged context attention",
            f"{where}.{key}" if where else key,
            f"Remove '{key}', or build the engine with 'fmha: enable' and 'kv_cache: {{reuse: true}}'.",
            code="fmha",
            feature=feature,
        )
        for key, feature in asked_features(settings)
        if not able.get(feature, False)
    )


def to_switch_off(able: Mapping[str, bool]) -> Collection[str]:
    """The features that a server must be told to leave off, because they are on by default in some releases."""
    return tuple(name for name in (KV_REUSE, CHUNKED_PREFILL, DRAFT_TOKENS) if not able.get(name, False))
