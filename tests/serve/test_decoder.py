from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.serve import decoders
from toolkit.serve.architecture import read_decoder_config
from toolkit.serve.checkpoint import check_tensors, read_checkpoint
from toolkit.serve.compiled import cache_length
from toolkit.serve.decoder import Decoder, GroupedPrefillStep
from toolkit.serve.weight_map import expected_shapes, weight_map
from toolkit.serve.weights import CheckpointReader

PROMPT = [5, 17, 40, 3, 99, 250, 8, 31, 12, 77, 41]
MAX_SEQ_LEN = 64


def load(folder: Path, fmha: Any = "enable") -> Decoder:
    config = read_decoder_config(folder)
    found = read_checkpoint(folder)
    weights = weight_map(config)
    check_tensors(found, expected_shapes(weights), folder)
    decoder = Decoder(config, MAX_SEQ_LEN, fmha)
    with CheckpointReader(found) as reader:
        tensors = {name: reader.joined(sources, torch.float32) for name, sources in weights.items()}
    decoder.load_state_dict({**tensors, "rope": decoder.rope})
    return decoder.requires_grad_(False).eval()


def caches(decoder: Decoder, rows: int) -> list[torch.Tensor]:
    config = decoder.config
    shape = (rows, config.num_kv_heads, cache_length(MAX_SEQ_LEN), config.head_dim)
    return [torch.zeros(shape) for _ in range(2 * config.num_layers)]


def prefill(decoder: Decoder, tokens: list[int], kv: list[torch.Tensor], start: int = 0) -> torch.Tensor:
    counting = torch.arange(start + len(tokens))
    return decoder.prefill(torch.tensor(tokens), torch.tensor([start]), torch.tensor([len(tokens) - 1]), counting, kv)


def plain(model: Any, tokens: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.tensor([tokens]), use_cache=False).logits[0, -1].float()


def assert_same(got: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("fmha", ["enable", "disable"])
@pytest.mark.parametrize("family", decoders.FAMILIES)
def test_prefill_and_decode_answer_as_plain_transformers(family: str, fmha: str, tmp_path: Path) -> None:
    model = decoders.save(tmp_path, family)
    decoder = load(tmp_path, fmha)
    kv = caches(decoder, 1)
    assert_same(prefill(decoder, PROMPT[:7], kv), plain(model, PROMPT[:7]))
    for end in range(8, len(PROMPT) + 1):
        logits = decoder.decode(torch.tensor([PROMPT[end - 1]]), torch.tensor([end - 1]), torch.arange(end), kv)
        assert_same(logits[0], plain(model, PROMPT[:end]))


@pytest.mark.parametrize("fmha", ["enable", "disable"])
def test_a_prompt_may_come_in_chunks(fmha: str, tmp_path: Path) -> None:
    model = decoders.save(tmp_path)
    decoder = load(tmp_path, fmha)
    kv = caches(decoder, 1)
    prefill(decoder, PROMPT[:4], kv)
    assert_same(prefill(decoder, PROMPT[4:], kv, start=4), plain(model, PROMPT))


@pytest.mark.parametrize("fmha", ["enable", "disable"])
def test_rows_at_different_positions_decode_together_without_touching_each_other(fmha: str, tmp_path: Path) -> None:
    model = decoders.save(tmp_path)
    decoder = load(tmp_path, fmha)
    kv = caches(decoder, 2)
    prompts = [PROMPT[:3], PROMPT[2:9]]
    for row, prompt in enumerate(prompts):
        prefill(decoder, prompt, [cache[row : row + 1] for cache in kv])
    positions = torch.tensor([len(prompt) for prompt in prompts])
    logits = decoder.decode(torch.tensor([50, 60]), positions, torch.arange(8), kv)
    assert_same(logits[0], plain(model, [*prompts[0], 50]))
    assert_same(logits[1], plain(model, [*prompts[1], 60]))


def test_looking_at_more_keys_than_needed_changes_nothing(tmp_path: Path) -> None:
    decoders.save(tmp_path)
    decoder = load(tmp_path)
    tight, wide = caches(decoder, 1), caches(decoder, 1)
    tokens, start, last = torch.tensor(PROMPT), torch.tensor([0]), torch.tensor([len(PROMPT) - 1])
    expected = decoder.prefill(tokens, start, last, torch.arange(len(PROMPT)), tight)
    assert_same(decoder.prefill(tokens, start, last, torch.arange(MAX_SEQ_LEN), wide), expected)


@pytest.mark.parametrize("fmha", ["enable", "disable"])
def test_a_prompt_whose_query_heads_are_grouped_as_on_cuda_answers_alike(
    fmha: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = decoders.save(tmp_path, "llama")
    decoder = load(tmp_path, fmha)
    group = decoder.config.num_heads // decoder.config.num_kv_heads
    assert group > 1
    monkeypatch.setattr(
        decoder, "_prefill_step", lambda *positions: GroupedPrefillStep(decoder.rope, *positions, group)
    )
    assert_same(prefill(decoder, PROMPT, caches(decoder, 1)), plain(model, PROMPT))
