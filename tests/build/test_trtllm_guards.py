from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.build.test_trtllm_readback import PLUGINS, engine
from toolkit.build.trtllm_guards import (
    CHUNKED_PREFILL,
    KV_REUSE,
    features,
    for_unfused,
    refused_features,
    to_switch_off,
)
from toolkit.config.models import Limits

ABLE = {"context_fmha": True, "use_paged_context_fmha": True}
NONE = {"kv_cache_reuse": False, "chunked_prefill": False, "draft_tokens": False}


@pytest.mark.parametrize(
    ("plugins", "able"),
    [
        (ABLE, True),
        ({**ABLE, "use_paged_context_fmha": False}, False),
        ({**ABLE, "context_fmha": False}, False),
        ({}, False),
    ],
)
def test_only_paged_and_fused_context_attention_allows_anything(
    plugins: dict[str, Any], able: bool, tmp_path: Path
) -> None:
    assert set(features(engine(tmp_path, plugins=plugins)).values()) == {able}


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"kv_cache_config": {"enable_block_reuse": True}}, "kv_cache_config.enable_block_reuse"),
        ({"enable_chunked_prefill": True}, "enable_chunked_prefill"),
        ({"--enable-chunked-context": "true"}, "--enable-chunked-context"),
        ({"speculative_config": {"decoding_type": "Eagle"}}, "speculative_config"),
        ({"max_draft_len": 4}, "max_draft_len"),
    ],
)
def test_a_serving_flag_that_needs_paged_context_attention_is_refused(settings: dict[str, Any], key: str) -> None:
    (fault,) = refused_features(NONE, settings, "services.llm.options")
    assert key in fault.what
    assert fault.where == f"services.llm.options.{key}"
    assert "fmha: enable" in str(fault.hint)
    assert refused_features(dict.fromkeys(NONE, True), settings) == ()


@pytest.mark.parametrize("off", [False, None, "false", 0, "disable", ""])
def test_a_flag_that_is_off_asks_for_nothing(off: Any) -> None:
    assert refused_features(NONE, {"enable_block_reuse": off, "max_batch_size": 4}) == ()


def test_what_is_on_by_default_must_be_told_off(tmp_path: Path) -> None:
    assert set(to_switch_off(features(engine(tmp_path, plugins=PLUGINS)))) >= {KV_REUSE, CHUNKED_PREFILL}
    assert to_switch_off(features(engine(tmp_path, plugins=ABLE))) == ()


def test_guards_say_when_the_workspace_is_not_known() -> None:
    guards = for_unfused(Limits(), None)
    assert any("unknown size" in guard["why"] for guard in guards)
