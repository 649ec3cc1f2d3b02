from __future__ import annotations

from typing import Any

import pytest

from toolkit.runtimes.trtllm_guards import VANILLA, refused_features

NONE = {"kv_cache_reuse": False, "chunked_prefill": False, "draft_tokens": False}


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


def test_why_there_is_no_paged_context_attention_is_told() -> None:
    (fault,) = refused_features(NONE, {"enable_block_reuse": True}, because=VANILLA)
    assert "attention: vanilla" in fault.what
    assert "attention: auto" in str(fault.hint)
