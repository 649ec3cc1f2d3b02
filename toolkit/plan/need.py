"""How much GPU memory a service needs on each of its devices, from what its engine or model says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from toolkit.plan import kv

DTYPE_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1, "fp8": 1, "int8": 1}


@dataclass(frozen=True)
class Need:
    """Bytes on each device and lengths in tokens; None: unknown. ``kv_bytes_per_token`` 0: there is no KV cache."""

    weights_bytes: int | None = None
    kv_bytes_per_token: int | None = None
    activation_bytes: int | None = None
    graph_pool_bytes: int | None = None
    max_seq_len: int | None = None
    tokens_per_block: int | None = None
    max_batch_size: int | None = None

    @property
    def fixed_bytes(self) -> int | None:
        """Everything but the KV cache; None when a part of it is unknown."""
        parts = (self.weights_bytes, self.activation_bytes, self.graph_pool_bytes)
        return None if None in parts else sum(part for part in parts if part is not None)

    def kv_bytes(self, requests: int) -> int | None:
        """KV cache of so many requests of full length, in whole blocks; None when unknown."""
        if self.kv_bytes_per_token == 0:
            return 0
        if self.kv_bytes_per_token is None or self.max_seq_len is None:
            return None
        blocks = kv.blocks_for(self.max_seq_len, self.tokens_per_block or 1)
        return requests * blocks * (self.tokens_per_block or 1) * self.kv_bytes_per_token

    @property
    def least_bytes(self) -> int | None:
        """The smallest budget that answers one request of full length."""
        return _sum(self.fixed_bytes, self.kv_bytes(1))

    @property
    def most_bytes(self) -> int | None:
        """The budget at which ``max_batch_size`` requests of full length fit; more is of no use."""
        if self.max_batch_size is None and self.kv_bytes_per_token != 0:
            return None
        return _sum(self.fixed_bytes, self.kv_bytes(self.max_batch_size or 1))


def _sum(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else a + b


def from_model_config(
    config: Mapping[str, Any],
    weights_bytes: int | None,
    *,
    tp_size: int = 1,
    pp_size: int = 1,
    max_seq_len: int | None = None,
    max_batch_size: int | None = None,
    max_num_tokens: int | None = None,
    tokens_per_block: int | None = None,
    dtype: str | None = None,
    kv_dtype_bytes: int | None = None,
    graph_pool_bytes: int | None = None,
    fused_attention: bool = True,
) -> Need:
    """The need on each device of a model with this Hugging Face ``config.json``; what it does not say stays None.

    ``weights_bytes`` is the whole model's as it is stored; ``dtype`` (None: the model's own) is what it runs in, and
    weights are counted as converted to it. Activations are an upper estimate for ``max_num_tokens`` at once. Lengths
    are the server's: ``max_position_embeddings`` is what a model could do, not what one was started for.
    """
    text = config.get("text_config") or config
    stored_bytes = DTYPE_BYTES.get(str(text.get("torch_dtype") or text.get("dtype") or config.get("dtype")))
    dtype_bytes = stored_bytes if dtype is None else DTYPE_BYTES.get(dtype)
    weights_bytes = _converted(weights_bytes, stored_bytes, dtype_bytes)
    scores = 0 if fused_attention else _scores_bytes(text, max_seq_len, tp_size)
    return Need(
        weights_bytes=None if weights_bytes is None else -(-weights_bytes // (tp_size * pp_size)),
        kv_bytes_per_token=kv.bytes_per_token_of(text, kv_dtype_bytes or dtype_bytes, tp_size, pp_size),
        activation_bytes=_sum(_layer_bytes(text, max_num_tokens, max_batch_size, dtype_bytes, tp_size), scores),
        graph_pool_bytes=graph_pool_bytes,
        max_seq_len=max_seq_len,
        tokens_per_block=tokens_per_block,
        max_batch_size=max_batch_size,
    )


def _converted(weights_bytes: int | None, stored_bytes: int | None, dtype_bytes: int | None) -> int | None:
    """Weights in another element size; as stored where either size is unknown."""
    if weights_bytes is None or stored_bytes is None or dtype_bytes is None:
        return weights_bytes
    return -(-weights_bytes * dtype_bytes // stored_bytes)


def _layer_bytes(
    text: Mapping[str, Any], tokens: int | None, batch: int | None, dtype_bytes: int | None, tp_size: int
) -> int | None:
    """One layer's live tensors (residual, norm, QKV, output; gate, up, their product) and logits in float32."""
    sizes = [text.get(key) for key in ("hidden_size", "intermediate_size", "vocab_size")]
    if tokens is None or dtype_bytes is None or None in sizes:
        return None
    hidden, inner, vocab = (int(size) for size in sizes if size is not None)
    return tokens * (6 * hidden + -(-3 * inner // tp_size)) * dtype_bytes + 4 * vocab * (batch or 1)


def _scores_bytes(text: Mapping[str, Any], tokens: int | None, tp_size: int) -> int | None:
    """Unfused attention keeps scores and their softmax in float32: they grow with the square of the length."""
    heads = text.get("num_attention_heads")
    return None if tokens is None or heads is None else 2 * 4 * -(-int(heads) // tp_size) * tokens * tokens
