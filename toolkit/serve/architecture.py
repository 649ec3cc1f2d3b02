"""What a local Hugging Face folder says its decoder is, read from ``config.json`` without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolkit.errors import ToolkitError
from toolkit.names import nearest
from toolkit.serve.model_files import read_json, read_json_if_there

# Per architecture: bias on q, k and v by default; RMS norm on q and k heads.
_FAMILIES: Mapping[str, tuple[bool, bool]] = {
    "LlamaForCausalLM": (False, False),
    "MistralForCausalLM": (False, False),
    "Qwen2ForCausalLM": (True, False),
    "Qwen3ForCausalLM": (False, True),
}
SUPPORTED_ARCHITECTURES = tuple(_FAMILIES)
SUPPORTED_ROPE_KINDS = ("default", "linear", "llama3")
_ACTIVATIONS = ("silu", "swish")


@dataclass(frozen=True)
class Rope:
    """Rotary embedding: ``kind`` is one of ``SUPPORTED_ROPE_KINDS``; the rest is used where the kind needs it."""

    theta: float = 10000.0
    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192


@dataclass(frozen=True)
class DecoderConfig:
    """Shape of a Llama-family decoder. ``windows``: each layer's sliding window in tokens, or None."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    max_position_embeddings: int
    rope: Rope
    tied_embeddings: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    windows: tuple[int | None, ...]
    eos_token_ids: tuple[int, ...]
    dtype: str | None = None


def read_decoder_config(model_dir: Path) -> DecoderConfig:
    """The decoder that ``config.json`` (and ``generation_config.json``) of a model folder describes.

    Raises: ToolkitError when the folder or a value is missing, or the architecture, rope or activation is unsupported.
    """
    if not model_dir.is_dir():
        raise ToolkitError("the model folder does not exist", str(model_dir), "Check 'model:'.", code="model_missing")
    path = model_dir / "config.json"
    raw = read_json(path)
    generation = model_dir / "generation_config.json"
    eos = read_json_if_there(generation).get("eos_token_id")
    try:
        return parse_decoder_config(raw, eos)
    except ToolkitError as error:
        raise error.at(str(path)) from None
    except KeyError as error:
        raise ToolkitError(f"key {error} is missing", str(path), "Fetch the model again.", code="model") from None
    except (TypeError, ValueError, ZeroDivisionError) as error:
        raise ToolkitError(f"a value is wrong: {error}", str(path), "Fetch the model again.", code="model") from None


def parse_decoder_config(raw: Mapping[str, Any], eos_token_id: Any = None) -> DecoderConfig:
    """The decoder that the content of a ``config.json`` describes.

    Raises: ToolkitError for what is unsupported; KeyError, TypeError or ValueError for a malformed value.
    """
    architecture = _architecture(raw)
    qkv_bias, qk_norm = _FAMILIES[architecture]
    if raw.get("hidden_act", "silu") not in _ACTIVATIONS:
        raise _unsupported(f"activation '{raw['hidden_act']}'", _ACTIVATIONS)
    hidden_size, heads = int(raw["hidden_size"]), int(raw["num_attention_heads"])
    layers = int(raw["num_hidden_layers"])
    attention_bias = bool(raw.get("attention_bias") or False)
    config = DecoderConfig(
        architecture=architecture,
        vocab_size=int(raw["vocab_size"]),
        hidden_size=hidden_size,
        intermediate_size=int(raw["intermediate_size"]),
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=int(raw.get("num_key_value_heads") or heads),
        head_dim=int(raw.get("head_dim") or hidden_size // heads),
        rms_norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
        max_position_embeddings=int(raw.get("max_position_embeddings", 2048)),
        rope=_rope(raw),
        tied_embeddings=bool(raw.get("tie_word_embeddings", False)),
        qkv_bias=qkv_bias or attention_bias,
        output_bias=attention_bias,
        mlp_bias=bool(raw.get("mlp_bias") or False),
        qk_norm=qk_norm,
        windows=_windows(raw, architecture, layers),
        eos_token_ids=_eos(eos_token_id if eos_token_id is not None else raw.get("eos_token_id")),
        dtype=raw.get("dtype") or raw.get("torch_dtype"),
    )
    return _checked(config)


def decoder_config_of(document: Mapping[str, Any]) -> DecoderConfig:
    """The decoder that ``dataclasses.asdict`` of a ``DecoderConfig`` (as JSON) describes."""
    tuples = {name: tuple(document[name]) for name in ("windows", "eos_token_ids")}
    return DecoderConfig(**{**document, **tuples, "rope": Rope(**document["rope"])})


def _architecture(raw: Mapping[str, Any]) -> str:
    names = raw.get("architectures") or ["(none)"]
    name = str(names[0])
    if name not in _FAMILIES:
        raise _unsupported(f"architecture '{name}'", SUPPORTED_ARCHITECTURES, nearest(name, SUPPORTED_ARCHITECTURES))
    return name


def _unsupported(what: str, supported: tuple[str, ...], near: str | None = None) -> ToolkitError:
    nearest = f" The nearest is {near}." if near else ""
    return ToolkitError(
        f"{what} is not supported by builder torch",
        hint=f"Supported: {', '.join(supported)}.{nearest}",
        code="unsupported_architecture",
        supported=list(supported),
    )


def _rope(raw: Mapping[str, Any]) -> Rope:
    nested = raw.get("rope_parameters") or {}
    scaling = raw.get("rope_scaling") or nested
    kind = str(scaling.get("rope_type") or scaling.get("type") or "default")
    if kind not in SUPPORTED_ROPE_KINDS:
        raise _unsupported(f"rope scaling '{kind}'", SUPPORTED_ROPE_KINDS)
    if float(raw.get("partial_rotary_factor") or nested.get("partial_rotary_factor") or 1.0) != 1.0:
        raise _unsupported("partial rotary embedding", ("full rotary embedding",))
    theta = float(nested.get("rope_theta") or raw.get("rope_theta") or 10000.0)
    if kind == "default":
        return Rope(theta)
    if kind == "linear":
        return Rope(theta, kind, float(scaling["factor"]))
    return Rope(
        theta,
        kind,
        float(scaling["factor"]),
        float(scaling["low_freq_factor"]),
        float(scaling["high_freq_factor"]),
        int(scaling["original_max_position_embeddings"]),
    )


def _windows(raw: Mapping[str, Any], architecture: str, layers: int) -> tuple[int | None, ...]:
    window = raw.get("sliding_window")
    if window is None or (architecture.startswith("Qwen") and not raw.get("use_sliding_window")):
        return (None,) * layers
    kinds = raw.get("layer_types")
    if kinds is None and architecture.startswith("Qwen"):
        first = int(raw.get("max_window_layers", layers))
        return tuple(int(window) if layer >= first else None for layer in range(layers))
    if kinds is None:
        return (int(window) if architecture == "MistralForCausalLM" else None,) * layers
    return tuple(int(window) if kinds[layer] == "sliding_attention" else None for layer in range(layers))


def _eos(value: Any) -> tuple[int, ...]:
    if value is None:
        return ()
    return tuple(int(token) for token in value) if isinstance(value, list) else (int(value),)


def _checked(config: DecoderConfig) -> DecoderConfig:
    if config.num_heads % config.num_kv_heads:
        raise ValueError(f"num_attention_heads {config.num_heads} is no multiple of {config.num_kv_heads} KV heads")
    if config.head_dim % 2:
        raise ValueError(f"head_dim {config.head_dim} is odd")
    smallest = min(config.vocab_size, config.hidden_size, config.intermediate_size, config.num_layers)
    if smallest < 1 or config.head_dim < 2:
        raise ValueError("a size is not positive")
    return config
