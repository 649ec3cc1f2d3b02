from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.build.test_trtllm_readback import PLUGINS, engine
from toolkit.build.trtllm_guards import features, for_unfused
from toolkit.config.models import Limits
from toolkit.runtimes.trtllm_guards import CHUNKED_PREFILL, KV_REUSE, to_switch_off

ABLE = {"context_fmha": True, "use_paged_context_fmha": True}


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


def test_what_is_on_by_default_must_be_told_off(tmp_path: Path) -> None:
    assert set(to_switch_off(features(engine(tmp_path, plugins=PLUGINS)))) >= {KV_REUSE, CHUNKED_PREFILL}
    assert to_switch_off(features(engine(tmp_path, plugins=ABLE))) == ()


def test_guards_say_when_the_workspace_is_not_known() -> None:
    guards = for_unfused(Limits(), None)
    assert any("unknown size" in guard["why"] for guard in guards)
