"""Tiny random decoders of every family, saved as Hugging Face folders with a tokenizer of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers

VOCAB = 300
_SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "initializer_range": 0.2,
}
_LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {"tie_word_embeddings": True}),
    "llama-untied-biased": ("Llama", {"tie_word_embeddings": False, "attention_bias": True, "mlp_bias": True}),
    "llama3-rope": ("Llama", {"rope_parameters": _LLAMA3}),
    "linear-rope": ("Llama", {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}}),
    "explicit-head-dim": ("Llama", {"head_dim": 32}),
    "one-kv-head": ("Llama", {"num_key_value_heads": 1}),
    "mistral-window": ("Mistral", {"sliding_window": 5}),
    "qwen2": ("Qwen2", {}),
    "qwen2-windows": ("Qwen2", {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}),
    "qwen3": ("Qwen3", {"head_dim": 24}),
}


def save(folder: Path, family: str = "llama", **changes: Any) -> Any:
    """The transformers model (float32, eager attention) that the folder now holds."""
    kind, special = FAMILIES[family]
    torch.manual_seed(7)
    config = getattr(transformers, f"{kind}Config")(**{**_SHAPE, **special, **changes})
    config._attn_implementation = "eager"
    model = getattr(transformers, f"{kind}ForCausalLM")(config).float().eval()
    # Weights that start as ones or zeros would hide a norm or a bias that is left out.
    for name, parameter in model.named_parameters():
        if "norm" in name or name.endswith("bias"):
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    model.save_pretrained(folder)
    save_tokenizer(folder)
    return model


def save_tokenizer(folder: Path) -> None:
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    vocab = {"<pad>": 0, "<s>": 1, "</s>": 2, **{symbol: 3 + i for i, symbol in enumerate(sorted(alphabet))}}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocab, merges=[], unk_token=None))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
