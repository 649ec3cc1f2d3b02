"""What TensorRT-LLM must not be asked for when it serves without paged context attention. Pure.

Block reuse, chunked prefill and draft tokens start behind cached blocks, which only paged context attention reads:
without it answers are wrong, and nobody is told.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from toolkit.errors import ToolkitError

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


@dataclass(frozen=True)
class Because:
    """Why something cannot be served, and what else to do than leave it."""

    why: str
    cure: str


ENGINE = Because(
    "this engine was built without paged context attention",
    "build the engine with 'fmha: enable' and 'kv_cache: {reuse: true}'",
)
VANILLA = Because("'attention: vanilla' has no paged context attention", "write 'attention: auto'")


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
    able: Mapping[str, bool], settings: Mapping[str, Any], where: str | None = None, because: Because = ENGINE
) -> tuple[ToolkitError, ...]:
    """A fault for each serving flag that needs paged context attention where there is none; ``because``: why not."""
    return tuple(
        ToolkitError(
            f"'{key}' {_WHY[feature]}, and {because.why}",
            f"{where}.{key}" if where else key,
            f"Remove '{key}', or {because.cure}.",
            code="fmha",
            feature=feature,
        )
        for key, feature in asked_features(settings)
        if not able.get(feature, False)
    )


def to_switch_off(able: Mapping[str, bool]) -> Collection[str]:
    """The features that a server must be told to leave off, because they are on by default in some releases."""
    return tuple(name for name in (KV_REUSE, CHUNKED_PREFILL, DRAFT_TOKENS) if not able.get(name, False))
