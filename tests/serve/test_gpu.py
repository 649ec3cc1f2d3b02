"""Attention paths on a real GPU: run by hand with 'pytest -m gpu'."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
import torch

from tests.serve.small_models import write_bert
from toolkit.serve import compiles
from toolkit.serve.arguments import open_device
from toolkit.serve.attention import Needs, obstacle
from toolkit.serve.batcher import Tokens
from toolkit.serve.sentence import SentenceEncoder, choose_attention, load_encoder, read_sentence_config

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]
IDS = [(2, 9, 3), (2, 5, 6, 7, 8, 3), (2, 40, 3), (2, 11, 12, 13, 14, 15, 16, 17, 18, 3)]
TEXTS = [Tokens(ids) for ids in IDS]
LIBRARIES = {"fa4": "flash_attn.cute", "fa3": "flash_attn_interface", "fa2": "flash_attn"}


def embeddings(folder: Path, device: str, dtype: torch.dtype, asked: str) -> tuple[SentenceEncoder, torch.Tensor]:
    config = read_sentence_config(folder)
    weights = load_encoder(config, torch.device(device), dtype)
    encoder = SentenceEncoder(weights, config, choose_attention(weights, asked))
    return encoder, encoder.embed(TEXTS)


def installed(name: str) -> bool:
    try:  # the package of flash-attn-4 is a part of flash_attn, which is not there for that
        return hasattr(importlib.import_module(LIBRARIES[name]), "flash_attn_varlen_func")
    except ImportError:
        return False


@pytest.mark.parametrize("asked", ["fa4", "fa3", "fa2", "sdpa", "vanilla", "auto"])
def test_every_path_of_this_gpu_computes_what_the_cpu_does(tmp_path: Path, asked: str) -> None:
    needs = Needs(torch.device("cuda"), torch.float16)
    if asked in LIBRARIES and (obstacle(asked, needs) or not installed(asked)):
        pytest.skip(f"{asked} is not for this GPU or not installed")
    write_bert(tmp_path)
    _, expected = embeddings(tmp_path, "cpu", torch.float32, "vanilla")
    encoder, vectors = embeddings(tmp_path, "cuda", torch.float16, asked)
    assert torch.cosine_similarity(vectors, expected).min() > 0.999
    assert encoder.attention.used == asked or asked == "auto"
    assert encoder.attention.kernels


def test_kernels_of_flash_attention_4_are_compiled_once(tmp_path: Path) -> None:
    needs = Needs(torch.device("cuda"), torch.float16)
    if obstacle("fa4", needs) or not installed("fa4"):
        pytest.skip("fa4 is not for this GPU or not installed")
    encoder, _ = embeddings(write_bert(tmp_path), "cuda", torch.float16, "fa4")
    compiled = compiles.flash_kernels()
    assert compiled > 0
    encoder.embed([Tokens((5,) * 12)] * 7)
    assert compiles.flash_kernels() == compiled


def test_memory_past_the_budget_is_refused() -> None:
    device = open_device("cuda", None, 256 * 1024**2)
    try:
        with pytest.raises(torch.cuda.OutOfMemoryError):
            torch.empty(512 * 1024**2, dtype=torch.uint8, device=device)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device)
