"""Turns a Llama-family GGUF file into a Hugging Face folder: bfloat16 safetensors, configuration, tokenizer.

Own code, because transformers' GGUF loader needs accelerate, keeps the weights packed in some releases, and knows
no ``smollm`` pre-tokenizer (digits one by one). The folder is read back with plain transformers before it counts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGUFReader
from gguf.quants import dequantize
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

CONTROL_TOKEN = 3  # GGUF's token type of special tokens
OUTSIDE_LAYERS = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
INSIDE_LAYERS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def convert(gguf_file: Path, folder: Path) -> None:
    """Writes the Hugging Face folder of ``gguf_file``.

    Raises: ValueError when the file is of another architecture, tokenizer or tensor layout.
    """
    reader = GGUFReader(gguf_file)
    meta = _Metadata(reader)
    config = model_config(meta)
    tied = config["tie_word_embeddings"] = not any(t.name == "output.weight" for t in reader.tensors)
    weights = {hf_name(t.name): _bfloat16(t, config) for t in reader.tensors}
    if tied and "lm_head.weight" in weights:
        raise ValueError("tied embeddings, and yet an output matrix")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)  # safetensors makes it 0600
    _write_json(folder / "config.json", config)
    ids = {name: config[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    _write_json(folder / "generation_config.json", ids)
    tokenizer(meta).save(str(folder / "tokenizer.json"))
    _write_json(folder / "tokenizer_config.json", tokenizer_config(meta))


class _Metadata:
    """The key-value part of a GGUF file."""

    def __init__(self, reader: GGUFReader) -> None:
        self._fields = reader.fields

    def __getitem__(self, key: str) -> Any:
        if key not in self._fields:
            raise ValueError(f"the GGUF file has no '{key}'")
        return self._fields[key].contents()

    def get(self, key: str, default: Any) -> Any:
        return self[key] if key in self._fields else default


def model_config(meta: Mapping[str, Any] | _Metadata) -> dict[str, Any]:
    """The ``config.json`` of a Llama-family GGUF file."""
    if meta["general.architecture"] != "llama":
        raise ValueError(f"architecture '{meta['general.architecture']}' is not converted here, only llama")
    heads = int(meta["llama.attention.head_count"])
    hidden = int(meta["llama.embedding_length"])
    eps = np.float32(meta["llama.attention.layer_norm_rms_epsilon"])
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "torch_dtype": "bfloat16",
        "vocab_size": len(meta["tokenizer.ggml.tokens"]),
        "hidden_size": hidden,
        "intermediate_size": int(meta["llama.feed_forward_length"]),
        "num_hidden_layers": int(meta["llama.block_count"]),
        "num_attention_heads": heads,
        "num_key_value_heads": int(meta["llama.attention.head_count_kv"]),
        "head_dim": hidden // heads,
        "hidden_act": "silu",
        "max_position_embeddings": int(meta["llama.context_length"]),
        "rms_norm_eps": float(str(eps)),  # 1e-05, not its nearest float32 in 16 digits
        "rope_theta": float(meta["llama.rope.freq_base"]),
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": int(meta["tokenizer.ggml.bos_token_id"]),
        "eos_token_id": int(meta["tokenizer.ggml.eos_token_id"]),
        "pad_token_id": int(meta.get("tokenizer.ggml.padding_token_id", meta["tokenizer.ggml.eos_token_id"])),
    }


def hf_name(gguf_name: str) -> str:
    """The Hugging Face name of a GGUF tensor, such as ``blk.3.attn_q.weight``."""
    match = re.fullmatch(r"(?:blk\.(\d+)\.)?([a-z_]+)\.weight", gguf_name)
    table = INSIDE_LAYERS if match and match[1] else OUTSIDE_LAYERS
    if match is None or match[2] not in table:
        raise ValueError(f"tensor '{gguf_name}' is not converted here")
    prefix = f"model.layers.{match[1]}." if match[1] else ""
    return f"{prefix}{table[match[2]]}.weight"


def _bfloat16(tensor: Any, config: dict[str, Any]) -> torch.Tensor:
    values = dequantize(tensor.data, tensor.tensor_type)
    if tensor.name.endswith("attn_q.weight"):
        values = half_rotated(values, config["num_attention_heads"])
    elif tensor.name.endswith("attn_k.weight"):
        values = half_rotated(values, config["num_key_value_heads"])
    return torch.from_numpy(np.array(values)).to(torch.bfloat16)


def half_rotated(values: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """Rows per head in Hugging Face's order (first halves, then second halves); GGUF interleaves the pairs."""
    rows, columns = values.shape
    return values.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def tokenizer(meta: Mapping[str, Any] | _Metadata) -> Tokenizer:
    """The byte-level BPE tokenizer of the file."""
    kind = (meta["tokenizer.ggml.model"], meta["tokenizer.ggml.pre"])
    if kind != ("gpt2", "smollm"):
        raise ValueError(f"tokenizer {kind} is not converted here, only ('gpt2', 'smollm')")
    words = meta["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in meta["tokenizer.ggml.merges"]]
    result = Tokenizer(models.BPE(vocab={word: i for i, word in enumerate(words)}, merges=merges))
    digits = pre_tokenizers.Digits(individual_digits=True)
    result.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    result.decoder = decoders.ByteLevel()
    kinds = meta["tokenizer.ggml.token_type"]
    special = [word for word, kind in zip(words, kinds, strict=True) if kind == CONTROL_TOKEN]
    result.add_special_tokens([AddedToken(word, normalized=False, special=True) for word in special])
    return result


def tokenizer_config(meta: Mapping[str, Any] | _Metadata) -> dict[str, Any]:
    """The ``tokenizer_config.json`` of the file, chat template included."""
    words = meta["tokenizer.ggml.tokens"]
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": int(meta["llama.context_length"]),
        "clean_up_tokenization_spaces": False,
        "add_prefix_space": False,
        "chat_template": meta["tokenizer.chat_template"],
    }
    for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        config[f"{name}_token"] = words[meta[f"tokenizer.ggml.{key}_token_id"]]
    return config


def check(folder: Path, prompt: str, answer: str) -> None:
    """Reads the folder with plain transformers: texts survive the tokenizer, and the model answers as it should.

    Raises: ValueError when they do not.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer, logging  # seconds, only for this

    logging.disable_progress_bar()
    read = AutoTokenizer.from_pretrained(folder)
    for text in ("def f():\n\treturn  12 345", "naïve café 日本 🙂", "  two  spaces<|im_end|>\n"):
        if read.decode(read(text).input_ids) != text:
            raise ValueError(f"the tokenizer does not give {text!r} back")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    tied = model.get_output_embeddings().weight.data_ptr() == model.get_input_embeddings().weight.data_ptr()
    if tied != model.config.tie_word_embeddings:
        raise ValueError("input and output embeddings are not tied as config.json says")
    inputs = read(prompt, return_tensors="pt")
    tokens = model.generate(**inputs, max_new_tokens=4, do_sample=False)
    got = read.decode(tokens[0][inputs.input_ids.shape[1] :])
    if not got.startswith(answer):
        raise ValueError(f"{prompt!r} is continued with {got!r}, not with {answer!r}")


def _write_json(file: Path, content: dict[str, Any]) -> None:
    file.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
