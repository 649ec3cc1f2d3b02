"""The Llama-family decoder that is compiled: one prefill and one decode graph over preallocated KV caches.

Shapes: B rows (slots), T prompt tokens, S cache length, D head size, N keys that a call looks at (``span``).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from toolkit.serve.architecture import DecoderConfig, Rope

FmhaMode = Literal["enable", "disable"]
LinearClass = type[nn.Linear]


def rope_frequencies(rope: Rope, head_dim: int) -> Tensor:
    """Inverse frequencies, float32 of shape [head_dim / 2].

    Source: the published definitions of linear and llama3 scaling, as Hugging Face configs name them.
    """
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    plain = 1.0 / (rope.theta**exponents)
    if rope.kind == "default":
        return plain
    if rope.kind == "linear":
        return plain / rope.factor
    wavelength = 2 * math.pi / plain
    original = rope.original_max_position_embeddings
    longest, shortest = original / rope.low_freq_factor, original / rope.high_freq_factor
    smooth = (original / wavelength - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    blended = (1 - smooth) * plain / rope.factor + smooth * plain
    stretched = torch.where(wavelength > longest, plain / rope.factor, blended)
    return torch.where(wavelength < shortest, plain, stretched)


def rope_table(rope: Rope, head_dim: int, length: int) -> Tensor:
    """Cosines and sines by position, float32 of shape [2, length, head_dim / 2]."""
    angles = torch.outer(torch.arange(length).float(), rope_frequencies(rope, head_dim))
    return torch.stack((angles.cos(), angles.sin()))


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """``x`` [rows, heads, D] turned by its row's angles [rows, 1, D / 2]."""
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size), requires_grad=False)
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * wide.to(x.dtype)


class PackedLinear(nn.Linear):
    """A product whose weight is stored, at run time, in the order in which oneDNN reads it: see ``packing.py``."""

    def forward(self, x: Tensor) -> Tensor:
        product: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")
        return product


def fused_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    """Attention by the fused operator; query [B, H, Q, D], key and value [B, K, N, D], ``mask`` 0 or -inf."""
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, enable_gqa=query.shape[1] != key.shape[1])


def plain_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    """Attention by two matrix products and a softmax; shapes as in ``fused_attention``.

    This is the textbook's form, which a compiler may well turn back into the fused operator: see ``compile.py``.
    """
    group = query.shape[1] // key.shape[1]
    if group > 1:
        key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
    scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(query.shape[-1]) + mask
    return torch.matmul(torch.softmax(scores, dim=-1), value)


ATTENTION = {"enable": fused_attention, "disable": plain_attention}


def additive(visible: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where ``visible``, else minus infinity."""
    return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill(~visible, float("-inf"))


class Attention(nn.Module):
    """One layer's attention; q, k and v come from one product."""

    def __init__(self, config: DecoderConfig, fmha: FmhaMode, linear: LinearClass) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = config.num_heads, config.num_kv_heads, config.head_dim
        width = (self.heads + 2 * self.kv_heads) * self.head_dim
        self.qkv_proj = linear(config.hidden_size, width, bias=config.qkv_bias)
        self.o_proj = linear(self.heads * self.head_dim, config.hidden_size, bias=config.output_bias)
        norm = config.qk_norm
        self.q_norm = RMSNorm(self.head_dim, config.rms_norm_eps) if norm else nn.Identity()
        self.k_norm = RMSNorm(self.head_dim, config.rms_norm_eps) if norm else nn.Identity()
        self.attend = ATTENTION[fmha]

    def forward(self, x: Tensor, step: Step, mask: Tensor, key_cache: Tensor, value_cache: Tensor) -> Tensor:
        query, key, value = self._project(x, step)
        step.write(key_cache, key)
        step.write(value_cache, value)
        mixed = self.attend(step.as_queries(query, self.kv_heads), step.seen(key_cache), step.seen(value_cache), mask)
        out: Tensor = self.o_proj(step.as_rows(mixed))
        return out

    def _project(self, x: Tensor, step: Step) -> tuple[Tensor, Tensor, Tensor]:
        """Query [rows, H, D] and key, value [rows, K, D] of hidden states [rows, hidden]."""
        sizes = [self.heads, self.kv_heads, self.kv_heads]
        heads: Tensor = self.qkv_proj(x).view(x.shape[0], -1, self.head_dim)
        query, key, value = torch.split(heads, sizes, dim=1)
        return rotate(self.q_norm(query), step.cos, step.sin), rotate(self.k_norm(key), step.cos, step.sin), value


class MLP(nn.Module):
    """Gate and up come from one product."""

    def __init__(self, config: DecoderConfig, linear: LinearClass) -> None:
        super().__init__()
        self.gate_up_proj = linear(config.hidden_size, 2 * config.intermediate_size, bias=config.mlp_bias)
        self.down_proj = linear(config.intermediate_size, config.hidden_size, bias=config.mlp_bias)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up_proj(x).chunk(2, dim=-1)
        out: Tensor = self.down_proj(F.silu(gate) * up)
        return out


class Step(ABC):
    """What every layer of one call shares, rows being the tokens of one prompt or one token of each slot."""

    def __init__(self, rope: Tensor, positions: Tensor, key_positions: Tensor) -> None:
        self.positions = positions
        self.span = key_positions.shape[0]
        self.cos, self.sin = rope[0, positions].unsqueeze(1), rope[1, positions].unsqueeze(1)
        self._age = positions[:, None] - key_positions[None, :]

    def visible(self, window: int | None) -> Tensor:
        """Which keys each row may look at, bool of shape [rows, N]; ``window`` tokens back at most."""
        causal = self._age >= 0
        return causal if window is None else causal & (self._age < window)

    def seen(self, cache: Tensor) -> Tensor:
        """The part of a cache that this call looks at."""
        return cache[:, :, : self.span]

    @abstractmethod
    def mask(self, window: int | None) -> Tensor:
        """``visible`` in the shape that attention takes."""

    @abstractmethod
    def write(self, cache: Tensor, new: Tensor) -> None:
        """Puts ``new`` [rows, K, D] into a cache at the rows' positions."""

    @abstractmethod
    def as_queries(self, query: Tensor, kv_heads: int) -> Tensor:
        """Query heads [rows, H, D] in the shape that attention takes."""

    @abstractmethod
    def as_rows(self, mixed: Tensor) -> Tensor:
        """What attention gives, as [rows, H * D]."""


class PrefillStep(Step):
    """Rows are the tokens of one prompt: caches [1, K, S, D], queries [1, H, T, D]."""

    def mask(self, window: int | None) -> Tensor:
        return self.visible(window)[None, None]

    def write(self, cache: Tensor, new: Tensor) -> None:
        cache[0, :, self.positions] = new.transpose(0, 1)

    def as_queries(self, query: Tensor, kv_heads: int) -> Tensor:
        return query.transpose(0, 1).unsqueeze(0)

    def as_rows(self, mixed: Tensor) -> Tensor:
        return mixed.squeeze(0).transpose(0, 1).flatten(1)


class GroupedPrefillStep(PrefillStep):
    """Queries [1, K, H / K * T, D]: no key is repeated, and no kernel needs to know that heads share one.

    CUDA's masked kernel wants as many KV heads as query heads, and repeating them cannot be traced with a free length.
    """

    def __init__(self, rope: Tensor, positions: Tensor, key_positions: Tensor, group: int) -> None:
        super().__init__(rope, positions, key_positions)
        self._group = group

    def mask(self, window: int | None) -> Tensor:
        return self.visible(window).repeat(self._group, 1)[None, None]

    def as_queries(self, query: Tensor, kv_heads: int) -> Tensor:
        return query.transpose(0, 1).reshape(1, kv_heads, -1, query.shape[2])

    def as_rows(self, mixed: Tensor) -> Tensor:
        rows, head_dim = self.positions.shape[0], mixed.shape[3]
        return mixed.reshape(-1, rows, head_dim).transpose(0, 1).flatten(1)


class DecodeStep(Step):
    """Rows are slots: caches [B, K, S, D], queries [B, K, H / K, D].

    The query heads that share a KV head stand in for query positions, so that nothing is repeated.
    """

    def mask(self, window: int | None) -> Tensor:
        return self.visible(window)[:, None, None]

    def write(self, cache: Tensor, new: Tensor) -> None:
        rows = torch.arange(new.shape[0], device=new.device)[:, None]
        heads = torch.arange(new.shape[1], device=new.device)[None, :]
        cache[rows, heads, self.positions[:, None]] = new

    def as_queries(self, query: Tensor, kv_heads: int) -> Tensor:
        return query.view(query.shape[0], kv_heads, -1, query.shape[2])

    def as_rows(self, mixed: Tensor) -> Tensor:
        return mixed.flatten(1)


class Layer(nn.Module):
    def __init__(self, config: DecoderConfig, fmha: FmhaMode, linear: LinearClass) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config, fmha, linear)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = MLP(config, linear)

    def forward(self, x: Tensor, step: Step, mask: Tensor, key_cache: Tensor, value_cache: Tensor) -> Tensor:
        mixed: Tensor = x + self.self_attn(self.input_layernorm(x), step, mask, key_cache, value_cache)
        out: Tensor = mixed + self.mlp(self.post_attention_layernorm(mixed))
        return out


class Decoder(nn.Module):
    """A Llama-family decoder without its weights; ``fmha`` and ``packed`` choose what is traced.

    A packed decoder has an ``lm_head`` of its own even where the embedding is its weight.
    """

    rope: Tensor

    def __init__(
        self, config: DecoderConfig, max_seq_len: int, fmha: FmhaMode = "enable", *, packed: bool = False
    ) -> None:
        super().__init__()
        self.config = config
        linear = PackedLinear if packed else nn.Linear
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config, fmha, linear) for _ in range(config.num_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        shared = config.tied_embeddings and not packed
        self.lm_head = None if shared else linear(config.hidden_size, config.vocab_size, bias=False)
        # One position more: an idle row of a full slot still computes one.
        self.register_buffer("rope", rope_table(config.rope, config.head_dim, max_seq_len + 1))

    def prefill(
        self, tokens: Tensor, start: Tensor, last: Tensor, key_positions: Tensor, caches: Sequence[Tensor]
    ) -> Tensor:
        """Logits [vocab] float32 after the one of ``tokens`` [T] that ``last`` names; what is behind it only fills up.

        The tokens stand at positions start, start + 1, …. ``start`` and ``last`` int64 [1]; ``key_positions`` int64
        [N] counts 0..N-1 with N >= start + T; ``caches`` holds key and value by layer, [1, K, S, D]; positions before
        ``start`` must be filled already. Changed in place.
        """
        positions = start + torch.arange(tokens.shape[0], device=tokens.device)
        hidden = self._run(tokens, self._prefill_step(positions, key_positions), caches)
        return self._logits(hidden.index_select(0, last))[0]

    def _prefill_step(self, positions: Tensor, key_positions: Tensor) -> PrefillStep:
        group = self.config.num_heads // self.config.num_kv_heads
        if group == 1 or positions.device.type == "cpu":  # the CPU's kernel shares KV heads itself
            return PrefillStep(self.rope, positions, key_positions)
        return GroupedPrefillStep(self.rope, positions, key_positions, group)

    def decode(self, tokens: Tensor, positions: Tensor, key_positions: Tensor, caches: Sequence[Tensor]) -> Tensor:
        """Logits [B, vocab] float32 after one token a row.

        ``tokens`` and ``positions`` int64 [B]; caches as in ``prefill``, [B, K, S, D].
        """
        hidden = self._run(tokens, DecodeStep(self.rope, positions, key_positions), caches)
        return self._logits(hidden)

    def _logits(self, hidden: Tensor) -> Tensor:
        normed = self.norm(hidden)
        logits = F.linear(normed, self.embed_tokens.weight) if self.lm_head is None else self.lm_head(normed)
        return logits.float()

    def _run(self, tokens: Tensor, step: Step, caches: Sequence[Tensor]) -> Tensor:
        hidden: Tensor = self.embed_tokens(tokens)
        # Made once for all layers, in the form that attention adds to its scores.
        masks = {window: additive(step.mask(window), hidden.dtype) for window in set(self.config.windows)}
        for index, layer in enumerate(self.layers):
            mask = masks[self.config.windows[index]]
            hidden = layer(hidden, step, mask, caches[2 * index], caches[2 * index + 1])
        return hidden
