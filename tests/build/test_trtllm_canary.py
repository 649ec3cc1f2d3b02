from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.build.test_trtllm_readback import engine
from tests.build.trtllm_bench import TrtllmBench
from toolkit import canaries
from toolkit.build import reference
from toolkit.build.trtllm_adopt import Surroundings, adopt
from toolkit.build.trtllm_canary import reach
from toolkit.canaries import CanaryPrompt, CanarySet, Reach, Reference
from toolkit.store import Store

SET = CanarySet(
    (CanaryPrompt("short", "The capital of France is", 1, 1, "context_fmha", 1),),
    {"short": Reference((7,), (2.5,), " Paris", (6,))},
    0.4,
    "transformers 5.0, float32 on the CPU",
)
ASKS = "checkpoint: ckpt\nmodel: hf\n"


@pytest.fixture
def asked(trtllm: TrtllmBench, monkeypatch: pytest.MonkeyPatch) -> list[Sequence[str]]:
    """How the child that records right answers was asked; it answers well."""
    folder = trtllm.folder / "hf"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"weights!")
    seen: list[Sequence[str]] = []

    def answer(argv: Sequence[str], env: Mapping[str, str]) -> reference.Outcome:
        seen.append(argv)
        return reference.Outcome(0, json.dumps(canaries.to_document(SET)), "")

    monkeypatch.setattr(reference, "run_child", answer)
    return seen


def carried(facts: Mapping[str, Any]) -> CanarySet:
    return canaries.of_document(facts["canary_set"])


@pytest.mark.parametrize(
    ("text", "config", "why"),
    [
        ("fmha: disable\n", {}, "its recipe names no 'model'"),
        ("fmha: disable\nmodel: hf\n", {"quantization": {"quant_algo": "W4A16"}}, "a quantised engine (W4A16)"),
        ("fmha: disable\nmodel: hf\n", {}, None),
        ('fmha: disable\ncanary: {expected: " Paris"}\n', {}, None),
        ("", {}, None),
    ],
)
def test_that_no_right_answers_can_be_recorded_is_told_before_an_unfused_engine_is_built(
    text: str, config: dict[str, Any], why: str | None, trtllm: TrtllmBench, asked: list[Sequence[str]]
) -> None:
    trtllm.checkpoint(**config)
    said: list[str] = []
    notes = trtllm.describe(f"checkpoint: ckpt\n{text}").notes
    trtllm.ensure(f"checkpoint: ckpt\n{text}", report=said.append)
    told = [note for note in notes if "no right answers will be recorded" in note]
    assert told == [note for note in told if why is not None and why in note]
    assert (len(told) > 0) is (why is not None)
    assert [line.removeprefix("warning: ") for line in said if "no right answers will" in line] == told
    if told:
        assert said.index(f"warning: {told[0]}") < next(n for n, line in enumerate(said) if "trtllm-build" in line)


def test_an_engine_carries_its_canary_set_when_it_is_reused_and_when_it_is_adopted_elsewhere(
    trtllm: TrtllmBench, asked: list[Sequence[str]], tmp_path: Path
) -> None:
    built = trtllm.ensure(ASKS)
    assert carried(built.info) == SET
    assert "right answers (short) come from transformers 5.0" in " ".join(built.notes)
    again = trtllm.ensure(ASKS)
    assert (again.reused, carried(again.info), len(asked)) == (True, SET, 1)
    entry, _ = adopt(built.path, Store(tmp_path / "elsewhere"), Surroundings())
    assert carried(entry.build["engine"]) == SET


def test_the_child_is_asked_in_the_engines_type_and_within_its_limits(
    trtllm: TrtllmBench, asked: list[Sequence[str]]
) -> None:
    trtllm.ensure(ASKS)
    words = list(asked[0])
    assert words[0] == str(trtllm.python)
    assert words[words.index("--dtype") + 1] == "float16"
    assert words[words.index("--max-input-len") + 1] == "512"
    assert words[words.index("--model-dir") + 1] == str(trtllm.folder / "hf")


@pytest.mark.parametrize(
    ("text", "quantization", "why"),
    [
        ("checkpoint: ckpt\n", {}, "its recipe names no 'model'"),
        (ASKS, {"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": None}}, "a quantised engine (FP8)"),
    ],
)
def test_an_engine_without_right_answers_is_published_and_says_why_it_has_none(
    trtllm: TrtllmBench, asked: list[Sequence[str]], text: str, quantization: dict[str, Any], why: str
) -> None:
    trtllm.checkpoint(**quantization)
    built = trtllm.ensure(text)
    assert built.info["canary_set"] is None
    assert why in " ".join(built.notes)
    assert asked == []


def test_engines_of_one_checkpoint_know_that_they_are(trtllm: TrtllmBench) -> None:
    fused, unfused = (trtllm.ensure(f"checkpoint: ckpt\nfmha: {fmha}\n").info for fmha in ("enable", "disable"))
    assert fused["checkpoint"] == unfused["checkpoint"]
    trtllm.checkpoint(2)
    assert trtllm.ensure("checkpoint: ckpt\n").info["checkpoint"] != fused["checkpoint"]


def test_chunks_are_reached_where_the_engine_can_start_behind_one(tmp_path: Path) -> None:
    able = {"context_fmha": True, "use_paged_context_fmha": True, "tokens_per_block": 64}
    limits = {"max_input_len": 1024, "max_seq_len": 2048, "max_num_tokens": 256}
    assert reach(engine(tmp_path, plugins=able, **limits), 8) == Reach(64, 256, 1024, True)
    unable = {**able, "use_paged_context_fmha": False}
    assert reach(engine(tmp_path, plugins=unable, **limits), 8) == Reach(64, 256, 256, False)
    assert reach(engine(tmp_path, plugins=able, **{**limits, "max_seq_len": 1024}), 8) == Reach(64, 256, 1016, True)
