"""KV cache arithmetic: bytes a token, blocks, and how many requests of full length fit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toolkit.plan.model import KvCapacity


def bytes_per_token(
    *, layers: int, kv_heads: int, head_dim: int, dtype_bytes: int, tp_size: int = 1, pp_size: int = 1
) -> int:
    """Bytes that one token keeps on each device: keys and values of every layer there.

    KV heads are divided among ``tp_size`` devices and repeated where there are fewer heads than devices.
    """
    return 2 * -(-layers // pp_size) * max(1, -(-kv_heads // tp_size)) * head_dim * dtype_bytes


def latent_bytes_per_token(layers: int, latent_dim: int, dtype_bytes: int, pp_size: int = 1) -> int:
    """The same for multi-head latent attention, which keeps one latent vector a layer on every device."""
    return -(-layers // pp_size) * latent_dim * dtype_bytes


def bytes_per_token_of(text: Mapping[str, Any], dtype_bytes: int | None, tp_size: int, pp_size: int) -> int | None:
    """Bytes a token of a model with this configuration (Hugging Face keys); None when it does not say enough.

    Sliding windows are not taken off: the number is an upper bound for models that have them.
    """
    layers, heads = text.get("num_hidden_layers"), text.get("num_attention_heads")
    if not layers or not heads or not dtype_bytes:
        return None
    if text.get("kv_lora_rank"):
        latent = int(text["kv_lora_rank"]) + int(text.get("qk_rope_head_dim") or 0)
        return latent_bytes_per_token(int(layers), latent, dtype_bytes, pp_size)
    head_dim = text.get("head_dim") or (int(text["hidden_size"]) // int(heads) if text.get("hidden_size") else None)
    if head_dim is None:
        return None
    kv_heads = int(text.get("num_key_value_heads") or heads)
    return bytes_per_token(
        layers=int(layers),
        kv_heads=kv_heads,
        head_dim=int(head_dim),
        dtype_bytes=dtype_bytes,
        tp_size=tp_size,
        pp_size=pp_size,
    )


def blocks_for(tokens: int, tokens_per_block: int) -> int:
    """Whole blocks that hold so many tokens."""
    return -(-tokens // tokens_per_block)


def capacity(kv_bytes: int, bytes_a_token: int, max_seq_len: int, tokens_per_block: int = 1) -> KvCapacity:
    """What so many bytes of KV cache hold."""
    blocks = max(0, kv_bytes) // (bytes_a_token * tokens_per_block)
    requests = blocks // blocks_for(max_seq_len, tokens_per_block)
    return KvCapacity(bytes_a_token, tokens_per_block, blocks, max_seq_len, requests)


def describe(capacity: KvCapacity) -> str:
    """One line for a person."""
    unit = "tokens" if capacity.tokens_per_block == 1 else f"blocks of {capacity.tokens_per_block} tokens"
    return (
        f"KV cache on each GPU: {capacity.bytes_per_token} bytes a token, {capacity.blocks} {unit}; "
        f"{capacity.full_length_requests} requests of {capacity.max_seq_len} tokens fit"
    )
