from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.serve import decoders
from tests.serve.test_decoder import PROMPT, assert_same, load, plain
from tests.serve.test_replay import RecordingPool
from toolkit.errors import ToolkitError
from toolkit.serve import compiled
from toolkit.serve.compiled import CompiledEngine, cache_length, check_fits, read_engine_info
from toolkit.serve.decoder import Decoder

SLOTS, MAX_INPUT_LEN, MAX_SEQ_LEN = 4, 32, 48
BLOCKS, BLOCK_TOKENS = 6, 4


class Uncompiled:
    """Stands in for a package: the same inputs, run by the model itself."""

    def __init__(self, decoder: Decoder, phase: str) -> None:
        self._run = getattr(decoder, phase)
        self._keys = 3 if phase == "prefill" else 2
        self.calls: list[tuple[int, int]] = []

    def run(self, inputs: Sequence[torch.Tensor]) -> torch.Tensor:
        self.calls.append((inputs[0].shape[0], inputs[self._keys].shape[0]))
        logits: torch.Tensor = self._run(*inputs[: self._keys + 1], inputs[self._keys + 1 :])
        return logits


def engine_info(fmha: str = "enable", **changes: Any) -> dict[str, Any]:
    limits = {"max_batch_size": SLOTS, "max_input_len": MAX_INPUT_LEN, "max_seq_len": MAX_SEQ_LEN}
    return {
        "format": 3, "device": "cpu", "vocab_size": decoders.VOCAB, "eos_token_ids": [2], "limits": limits,
        "fmha": fmha, "kv_cache": {"reuse": fmha == "enable"}, **changes,
    }  # fmt: skip


def made(folder: Path, **changes: Any) -> tuple[CompiledEngine, Any, dict[str, Uncompiled]]:
    model = decoders.save(folder)
    decoder = load(folder)
    config = decoder.config
    layers, heads, width = 2 * config.num_layers, config.num_kv_heads, config.head_dim
    cache = torch.zeros(layers, SLOTS, heads, cache_length(MAX_SEQ_LEN), width)
    store = torch.zeros(layers, heads, BLOCKS, BLOCK_TOKENS, width)
    packages = {phase: Uncompiled(decoder, phase) for phase in ("prefill", "decode")}
    return CompiledEngine(engine_info(**changes), packages, cache, store), model, packages


@pytest.fixture(params=["eager", "replayed"])
def make(request: pytest.FixtureRequest) -> Any:
    """Makes engines: as on a processor, and with the graphs and padding of a GPU."""

    def one(folder: Path, **changes: Any) -> tuple[CompiledEngine, Any, dict[str, Uncompiled]]:
        engine, model, packages = made(folder, **changes)
        if request.param == "replayed":
            engine.replay_with(RecordingPool())
            for rows in engine.shapes():
                engine.run_shape(rows)
        return engine, model, packages

    return one


def test_slots_at_different_positions_decode_together(tmp_path: Path, make: Any) -> None:
    engine, model, _ = make(tmp_path)
    prompts = {0: PROMPT[:3], 1: PROMPT[2:9], 3: PROMPT[4:6]}
    for slot, prompt in prompts.items():
        assert_same(engine.prefill(slot, prompt), plain(model, prompt))
    for step in range(3):
        logits = engine.decode([3, 0, 1], [60 + step, 70 + step, 80 + step])
        for row, (slot, first) in enumerate([(3, 60), (0, 70), (1, 80)]):
            assert_same(logits[row], plain(model, [*prompts[slot], *range(first, first + step + 1)]))
    assert [engine.length(slot) for slot in range(SLOTS)] == [6, 10, 0, 5]


def test_a_slot_that_waits_between_others_is_not_disturbed(tmp_path: Path, make: Any) -> None:
    engine, model, _ = make(tmp_path)
    for slot in range(3):
        engine.prefill(slot, PROMPT[: 4 + slot])
    for token in (30, 31, 32):
        engine.decode([0, 2], [token, token])
    assert_same(engine.decode([1], [99])[0], plain(model, [*PROMPT[:5], 99]))


def test_a_full_slot_between_others_is_no_harm(tmp_path: Path, make: Any) -> None:
    engine, model, _ = make(tmp_path)
    engine.prefill(0, PROMPT)
    engine.prefill(2, PROMPT)
    engine.prefill(1, PROMPT[:8])
    for token in range(MAX_SEQ_LEN - 8):
        engine.decode([1], [token])
    with pytest.raises(ValueError, match="no step possible"):
        engine.decode([1], [5])
    logits = engine.decode([0, 2], [5, 5])
    assert_same(logits[0], plain(model, [*PROMPT, 5]))
    assert_same(logits[1], plain(model, [*PROMPT, 5]))


def test_a_wiped_slot_is_rid_of_what_is_no_number(tmp_path: Path, make: Any) -> None:
    engine, model, _ = make(tmp_path)
    engine._cache[:, 0].fill_(float("nan"))
    engine.prefill(0, PROMPT[:4])
    assert engine.decode([0], [5]).isnan().any(), "a step looks past its last key"
    engine.release(0)
    engine.wipe(0)
    engine.prefill(0, PROMPT[:4])
    assert_same(engine.decode([0], [5])[0], plain(model, [*PROMPT[:4], 5]))


def test_a_released_slot_remembers_nothing(tmp_path: Path, make: Any) -> None:
    engine, model, _ = make(tmp_path)
    engine.prefill(0, PROMPT)
    engine.release(0)
    assert engine.length(0) == 0
    assert_same(engine.prefill(0, PROMPT[5:7]), plain(model, PROMPT[5:7]))


def test_a_prompt_may_start_behind_stored_blocks_of_another_slot(tmp_path: Path, make: Any) -> None:
    engine, model, _ = make(tmp_path)
    engine.prefill(0, PROMPT)
    engine.save_blocks(0, [(1, 3), (0, 5)])
    engine.release(0)
    engine.prefill(0, [9] * len(PROMPT))
    engine.load_blocks(2, [5, 3])
    assert engine.length(2) == 2 * BLOCK_TOKENS
    assert_same(engine.prefill(2, [200, 201], start=8), plain(model, [*PROMPT[:8], 200, 201]))


def test_only_whole_blocks_are_saved(tmp_path: Path, make: Any) -> None:
    engine, _, _ = make(tmp_path)
    engine.prefill(0, PROMPT[: BLOCK_TOKENS + 1])
    with pytest.raises(ValueError, match="no block 1"):
        engine.save_blocks(0, [(1, 0)])


def test_warming_the_blocks_leaves_what_they_hold(tmp_path: Path, make: Any) -> None:
    engine, model, _ = make(tmp_path)
    engine.prefill(1, PROMPT[:BLOCK_TOKENS])
    engine.save_blocks(1, [(0, 0)])
    engine.run_shape("blocks:1")
    assert engine.length(0) == 0
    engine.load_blocks(2, [0])
    assert_same(engine.prefill(2, [200], start=4), plain(model, [*PROMPT[:4], 200]))


def test_without_fused_attention_a_prompt_starts_at_its_beginning(tmp_path: Path, make: Any) -> None:
    engine, _, _ = make(tmp_path, fmha="disable")
    engine.prefill(0, PROMPT)
    assert not engine.chunks
    with pytest.raises(ValueError, match="without fused attention"):
        engine.prefill(0, [5], start=3)


def test_a_step_looks_at_no_more_keys_and_rows_than_it_must(tmp_path: Path) -> None:
    engine, _, packages = made(tmp_path)
    engine.prefill(1, PROMPT[:4])
    engine.decode([1], [5])
    assert packages["prefill"].calls == [(4, 4)]
    assert packages["decode"].calls == [(1, 32)]


@pytest.mark.parametrize(
    ("tokens", "start"), [([], 0), ([5] * (MAX_INPUT_LEN + 1), 0), ([5], 3), ([5] * 30, MAX_SEQ_LEN - 20)]
)
def test_prompts_that_do_not_fit_are_refused(tokens: list[int], start: int, tmp_path: Path, make: Any) -> None:
    engine, _, _ = make(tmp_path)
    with pytest.raises(ValueError, match=r"slot|fit"):
        engine.prefill(0, tokens, start)


@pytest.mark.parametrize(("slots", "tokens"), [([], []), ([0, 0], [5, 5]), ([0], [5, 6]), ([1], [5])])
def test_steps_that_make_no_sense_are_refused(slots: list[int], tokens: list[int], tmp_path: Path, make: Any) -> None:
    engine, _, _ = make(tmp_path)
    engine.prefill(0, PROMPT)
    with pytest.raises(ValueError, match=r"decode needs|no step possible"):
        engine.decode(slots, tokens)


def test_warm_up_runs_every_batch_and_the_longest_prompt_and_frees_its_slots(tmp_path: Path) -> None:
    engine, _, packages = made(tmp_path)
    for key in engine.shapes("full"):
        engine.run_shape(key)
    assert {rows for rows, _ in packages["decode"].calls} == set(range(1, SLOTS + 1))
    assert [rows for rows, _ in packages["prefill"].calls] == [4, 8, 12, 16, 20, 24, 28, 32]
    assert [engine.length(slot) for slot in range(SLOTS)] == [0] * SLOTS


def test_a_single_warm_up_is_one_token(tmp_path: Path) -> None:
    engine, _, packages = made(tmp_path)
    for key in engine.shapes("single"):
        engine.run_shape(key)
    assert packages["prefill"].calls == [(4, 4)]


def test_warm_up_never_touches_a_slot_in_use(tmp_path: Path, make: Any) -> None:
    engine, _, _ = make(tmp_path)
    engine.prefill(1, PROMPT)
    with pytest.raises(RuntimeError, match="in use"):
        engine.run_shape("decode:2")
    assert engine.length(1) == len(PROMPT)


@pytest.mark.parametrize("key", ["", "decode", "decode:0", "decode:x", "draft:1"])
def test_an_unknown_shape_is_refused(key: str, tmp_path: Path, make: Any) -> None:
    engine, _, _ = make(tmp_path)
    with pytest.raises(ValueError, match="is not a shape"):
        engine.run_shape(key)


@pytest.mark.parametrize("count", [1, 3, 9, 31])
def test_what_fills_a_prompt_up_changes_neither_its_logits_nor_what_follows(
    tmp_path: Path, make: Any, count: int
) -> None:
    engine, model, _ = make(tmp_path)
    prompt = [3 + token % 200 for token in range(count)]
    assert_same(engine.prefill(2, prompt), plain(model, prompt))
    assert engine.length(2) == count
    for step in range(3):
        assert_same(engine.decode([2], [50 + step])[0], plain(model, [*prompt, *range(50, 51 + step)]))


def test_a_long_prompt_runs_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "CPU_PIECE", 8)
    engine, model, packages = made(tmp_path)
    prompt = [3 + token % 200 for token in range(21)]
    assert_same(engine.prefill(1, prompt), plain(model, prompt))
    assert packages["prefill"].calls == [(8, 8), (8, 16), (8, 24)]


def test_warming_the_longest_prompt_runs_its_last_piece_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "CPU_PIECE", 8)
    engine, _, packages = made(tmp_path)
    assert [key for key in engine.shapes() if key.startswith("prefill")] == ["prefill:4", "prefill:8", "prefill:32"]
    engine.run_shape("prefill:32")
    assert packages["prefill"].calls == [(8, 32)]
    assert engine.length(0) == 0


def test_without_fused_attention_a_long_prompt_runs_in_one_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled, "CPU_PIECE", 8)
    engine, model, packages = made(tmp_path, fmha="disable")
    assert_same(engine.prefill(1, PROMPT), plain(model, PROMPT))
    assert len(packages["prefill"].calls) == 1


@pytest.mark.parametrize("max_seq_len", [1, 15, 16, 17, 1024])
def test_a_cache_is_always_longer_than_the_longest_sequence(max_seq_len: int) -> None:
    assert max_seq_len < cache_length(max_seq_len) <= max_seq_len + 16


def test_an_engine_that_would_reuse_prefixes_without_fused_attention_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ToolkitError, match="cannot be reused"):
        check_fits(engine_info("disable", kv_cache={"reuse": True}), tmp_path, "cpu")


def test_an_engine_for_another_device_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ToolkitError, match="compiled for cuda, not for cpu"):
        check_fits(engine_info(device="cuda"), tmp_path, "cpu")


def test_an_engine_for_a_processor_with_more_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ToolkitError, match="lacks: avx9000"):
        check_fits(engine_info(cpu_features=["avx9000"]), tmp_path, "cpu")


def test_an_engine_of_another_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "engine.json").write_text(json.dumps(engine_info() | {"format": 99}))
    with pytest.raises(ToolkitError, match="format 99"):
        read_engine_info(tmp_path)


def test_a_folder_that_is_no_engine_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ToolkitError, match=r"engine\.json is missing"):
        CompiledEngine.load(tmp_path, "cpu")


def test_a_warm_gpu_engine_runs_prompts_and_steps_of_warmed_sizes_only(tmp_path: Path) -> None:
    engine, _, packages = made(tmp_path)
    engine.replay_with(RecordingPool())
    for key in engine.shapes():
        engine.run_shape(key)
    warmed = {phase: set(package.calls) for phase, package in packages.items()}
    for length in range(1, MAX_INPUT_LEN + 1):
        slot = length % SLOTS
        engine.prefill(slot, [5] * length)
        engine.decode([slot], [6])
        engine.release(slot)
    assert {phase: set(package.calls) for phase, package in packages.items()} == warmed
    assert not engine.eager_steps


def test_a_prompt_at_the_very_end_of_a_slot_is_not_padded_past_it(tmp_path: Path) -> None:
    engine, model, _ = made(tmp_path)
    engine.replay_with(RecordingPool())
    engine.prefill(0, [7] * 27)
    rest = list(range(20, 20 + MAX_SEQ_LEN - 27))
    assert_same(engine.prefill(0, rest, start=27), plain(model, [*[7] * 27, *rest]))
    assert engine.length(0) == MAX_SEQ_LEN
