from __future__ import annotations

from pathlib import Path
from typing import Any

import convert_gguf
import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]

META: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.embedding_length": 32,
    "llama.attention.layer_norm_rms_epsilon": 9.999999747378752e-06,
    "llama.feed_forward_length": 64,
    "llama.block_count": 2,
    "llama.context_length": 128,
    "llama.rope.freq_base": 100000.0,
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": ["<|end|>", "<|start|>", "a", "b", "ab", "Ġ", "ĠĠ", "1", "2"],
    "tokenizer.ggml.token_type": [3, 3, 1, 1, 1, 1, 1, 1, 1],
    "tokenizer.ggml.merges": ["a b", "Ġ Ġ"],
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 0,
    "tokenizer.ggml.unknown_token_id": 0,
    "tokenizer.ggml.padding_token_id": 0,
    "tokenizer.chat_template": "{{ messages }}",
}


def test_the_configuration_says_what_the_file_says() -> None:
    config = convert_gguf.model_config(META)
    assert config["head_dim"] == 8
    assert config["num_key_value_heads"] == 2
    assert config["rms_norm_eps"] == 1e-05
    assert config["vocab_size"] == 9


def test_another_architecture_is_refused() -> None:
    with pytest.raises(ValueError, match="architecture 'gpt2' is not converted here"):
        convert_gguf.model_config({**META, "general.architecture": "gpt2"})


@pytest.mark.parametrize(
    ("gguf", "hugging_face"),
    [
        ("token_embd.weight", "model.embed_tokens.weight"),
        ("output_norm.weight", "model.norm.weight"),
        ("blk.12.attn_q.weight", "model.layers.12.self_attn.q_proj.weight"),
        ("blk.0.ffn_norm.weight", "model.layers.0.post_attention_layernorm.weight"),
    ],
)
def test_tensors_get_their_hugging_face_names(gguf: str, hugging_face: str) -> None:
    assert convert_gguf.hf_name(gguf) == hugging_face


@pytest.mark.parametrize("name", ["blk.0.attn_q.bias", "rope_freqs.weight", "blk.0.token_embd.weight"])
def test_an_unknown_tensor_is_refused_rather_than_dropped(name: str) -> None:
    with pytest.raises(ValueError, match="is not converted here"):
        convert_gguf.hf_name(name)


def test_interleaved_rows_become_halves_within_each_head() -> None:
    rows = np.arange(8).reshape(8, 1)
    assert convert_gguf.half_rotated(rows, heads=2).ravel().tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


def test_digits_are_tokens_of_their_own_and_spaces_before_them_stay_together() -> None:
    encoded = convert_gguf.tokenizer(META).encode("ab  12")
    assert encoded.tokens == ["ab", "ĠĠ", "1", "2"]


def test_special_tokens_are_found_in_text_and_left_out_when_decoding() -> None:
    tokenizer = convert_gguf.tokenizer(META)
    encoded = tokenizer.encode("<|start|>ab")
    assert encoded.ids == [1, 4]
    assert tokenizer.decode(encoded.ids) == "ab"


def test_another_tokenizer_is_refused() -> None:
    with pytest.raises(ValueError, match="tokenizer"):
        convert_gguf.tokenizer({**META, "tokenizer.ggml.pre": "llama-bpe"})


@pytest.mark.slow
def test_the_real_model_answers_paris() -> None:
    convert_gguf.check(ROOT / "models" / "smollm2-135m-instruct", "The capital of France is", " Paris")


@pytest.mark.slow
def test_the_real_model_with_a_wrong_answer_is_refused() -> None:
    with pytest.raises(ValueError, match="is continued with ' Paris"):
        convert_gguf.check(ROOT / "models" / "smollm2-135m-instruct", "The capital of France is", " Berlin")
