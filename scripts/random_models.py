#!/usr/bin/env python3
"""Writes models with random weights and a tokenizer, in Hugging Face's format: for machines without downloads.

    python scripts/random_models.py llama models/random-llama --layers 12 --hidden 1024
    python scripts/random_models.py bert models/random-bert --layers 12 --hidden 768

The Llama's next token is decided (its head is a permutation of its embeddings), so that right and wrong answers differ.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

HEAD_DIM = 64
SPECIAL = ("<unk>", "<s>", "</s>")
BERT_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def byte_tokenizer(vocab_size: int) -> Tokenizer:
    """Every byte is a token; the rest of the vocabulary are words of its own that no text contains."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [*SPECIAL, *alphabet, *(f"token{n}" for n in range(vocab_size - len(SPECIAL) - len(alphabet)))]
    tokenizer = Tokenizer(models.BPE({word: at for at, word in enumerate(words)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(word, special=True) for word in SPECIAL])
    return tokenizer


def bert_tokenizer(vocab_size: int) -> Tokenizer:
    """Letters and their continuations are tokens."""
    letters = [chr(code) for code in range(33, 127) if not chr(code).isupper()]
    pieces = [*BERT_SPECIAL, *letters, *(f"##{letter}" for letter in letters)]
    words = [*pieces, *(f"word{n}" for n in range(vocab_size - len(pieces)))]
    vocabulary = {word: at for at, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))  # noqa: S106  no secret
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        "[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return tokenizer


def llama(folder: Path, layers: int, hidden: int, vocab_size: int, dtype: torch.dtype) -> None:
    heads, kv_heads, wide = hidden // HEAD_DIM, max(1, hidden // HEAD_DIM // 4), hidden * 11 // 4
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": vocab_size, "hidden_size": hidden,
        "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv_heads,
        "head_dim": HEAD_DIM, "intermediate_size": wide, "hidden_act": "silu", "rms_norm_eps": 1e-5,
        "max_position_embeddings": 8192, "rope_theta": 10000.0, "tie_word_embeddings": False, "bos_token_id": 1,
        "eos_token_id": 2, "torch_dtype": str(dtype).removeprefix("torch."),
    }  # fmt: skip
    generator = torch.Generator().manual_seed(0)
    embeddings = torch.randn(vocab_size, hidden, generator=generator)
    order = torch.randperm(vocab_size, generator=generator)
    tensors = {"model.embed_tokens.weight": embeddings, "lm_head.weight": embeddings[order] * 0.2}
    shapes = {
        "self_attn.q_proj": (heads * HEAD_DIM, hidden), "self_attn.k_proj": (kv_heads * HEAD_DIM, hidden),
        "self_attn.v_proj": (kv_heads * HEAD_DIM, hidden), "self_attn.o_proj": (hidden, heads * HEAD_DIM),
        "mlp.gate_proj": (wide, hidden), "mlp.up_proj": (wide, hidden), "mlp.down_proj": (hidden, wide),
    }  # fmt: skip
    for layer in range(layers):
        for name, shape in shapes.items():
            tensors[f"model.layers.{layer}.{name}.weight"] = torch.randn(shape, generator=generator) * 0.02
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"model.layers.{layer}.{name}.weight"] = torch.ones(hidden)
    tensors["model.norm.weight"] = torch.ones(hidden)
    _save(folder, config, tensors, dtype, byte_tokenizer(vocab_size))


def bert(folder: Path, layers: int, hidden: int, vocab_size: int, dtype: torch.dtype) -> None:
    config = {
        "architectures": ["BertModel"], "model_type": "bert", "vocab_size": vocab_size, "hidden_size": hidden,
        "num_hidden_layers": layers, "num_attention_heads": hidden // HEAD_DIM, "intermediate_size": 4 * hidden,
        "hidden_act": "gelu", "max_position_embeddings": 512, "type_vocab_size": 2, "layer_norm_eps": 1e-12,
        "pad_token_id": 0, "torch_dtype": str(dtype).removeprefix("torch."),
    }  # fmt: skip
    generator = torch.Generator().manual_seed(0)
    tensors = {}
    for name, shape in _bert_shapes(layers, hidden, vocab_size):
        tensors[f"{name}.weight"] = torch.randn(shape, generator=generator) * 0.05 + (1.0 if "LayerNorm" in name else 0)
        if "embeddings.word" not in name and "_embeddings" not in name:
            tensors[f"{name}.bias"] = torch.randn(shape[0], generator=generator) * 0.05
    _save(folder, config, tensors, dtype, bert_tokenizer(vocab_size))


def _bert_shapes(layers: int, hidden: int, vocab_size: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield "embeddings.word_embeddings", (vocab_size, hidden)
    yield "embeddings.position_embeddings", (512, hidden)
    yield "embeddings.token_type_embeddings", (2, hidden)
    yield "embeddings.LayerNorm", (hidden,)
    for layer in (f"encoder.layer.{n}" for n in range(layers)):
        for part in ("query", "key", "value"):
            yield f"{layer}.attention.self.{part}", (hidden, hidden)
        yield f"{layer}.attention.output.dense", (hidden, hidden)
        yield f"{layer}.attention.output.LayerNorm", (hidden,)
        yield f"{layer}.intermediate.dense", (4 * hidden, hidden)
        yield f"{layer}.output.dense", (hidden, 4 * hidden)
        yield f"{layer}.output.LayerNorm", (hidden,)


def _save(
    folder: Path, config: dict[str, object], tensors: dict[str, torch.Tensor], dtype: torch.dtype, tokenizer: Tokenizer
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    stored = {name: tensor.to(dtype).contiguous() for name, tensor in tensors.items()}
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    (folder / "config.json").write_text(json.dumps(config, indent=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=("llama", "bert"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--hidden", type=int, default=768, help="a multiple of 64")
    parser.add_argument("--vocab", type=int, default=32000)
    parser.add_argument("--dtype", choices=("float32", "float16", "bfloat16"), default="bfloat16")
    asked = parser.parse_args()
    make = {"llama": llama, "bert": bert}[asked.kind]
    make(asked.folder, asked.layers, asked.hidden, asked.vocab, getattr(torch, asked.dtype))


if __name__ == "__main__":
    main()
