"""Which tensors of a Hugging Face checkpoint make up each tensor of the compiled decoder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from toolkit.serve.architecture import DecoderConfig


@dataclass(frozen=True)
class Source:
    """One tensor of the checkpoint."""

    name: str
    shape: tuple[int, ...]


WeightMap = Mapping[str, tuple[Source, ...]]


def weight_map(config: DecoderConfig) -> dict[str, tuple[Source, ...]]:
    """Per tensor of the decoder its sources, which are joined along the first dimension."""
    hidden, vocab = config.hidden_size, config.vocab_size
    tensors: dict[str, tuple[Source, ...]] = {
        "embed_tokens.weight": (Source("model.embed_tokens.weight", (vocab, hidden)),)
    }
    for index in range(config.num_layers):
        layer = _layer(config, f"model.layers.{index}.")
        tensors.update({f"layers.{index}.{name}": sources for name, sources in layer.items()})
    tensors["norm.weight"] = (Source("model.norm.weight", (hidden,)),)
    if not config.tied_embeddings:
        tensors["lm_head.weight"] = (Source("lm_head.weight", (vocab, hidden)),)
    return tensors


def expected_shapes(weights: WeightMap) -> dict[str, tuple[int, ...]]:
    """Name to shape of every tensor that the checkpoint must hold."""
    return {source.name: source.shape for sources in weights.values() for source in sources}


def _layer(config: DecoderConfig, prefix: str) -> dict[str, tuple[Source, ...]]:
    hidden, width = config.hidden_size, config.intermediate_size
    query, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    attention = {"q_proj": query, "k_proj": kv, "v_proj": kv}
    tensors = {
        **_joined(f"{prefix}self_attn.", "qkv_proj", attention, hidden, config.qkv_bias),
        **_joined(f"{prefix}self_attn.", "o_proj", {"o_proj": hidden}, query, config.output_bias),
    }
    tensors = {f"self_attn.{name}": sources for name, sources in tensors.items()}
    for norm in ("q_norm", "k_norm") if config.qk_norm else ():
        tensors[f"self_attn.{norm}.weight"] = (Source(f"{prefix}self_attn.{norm}.weight", (config.head_dim,)),)
    mlp = {
        **_joined(f"{prefix}mlp.", "gate_up_proj", {"gate_proj": width, "up_proj": width}, hidden, config.mlp_bias),
        **_joined(f"{prefix}mlp.", "down_proj", {"down_proj": hidden}, width, config.mlp_bias),
    }
    tensors.update({f"mlp.{name}": sources for name, sources in mlp.items()})
    for norm in ("input_layernorm", "post_attention_layernorm"):
        tensors[f"{norm}.weight"] = (Source(f"{prefix}{norm}.weight", (hidden,)),)
    return tensors


def _joined(prefix: str, name: str, parts: Mapping[str, int], inputs: int, bias: bool) -> dict[str, tuple[Source, ...]]:
    tensors = {
        f"{name}.weight": tuple(Source(f"{prefix}{part}.weight", (rows, inputs)) for part, rows in parts.items())
    }
    if bias:
        tensors[f"{name}.bias"] = tuple(Source(f"{prefix}{part}.bias", (rows,)) for part, rows in parts.items())
    return tensors
