"""How far the prompts of a service's canary set must reach, and in which data type it answers. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from toolkit.canaries import MAX_TOKENS, Reach
from toolkit.config.models import Recipe, Service
from toolkit.runtimes import sglang, transformers, vllm
from toolkit.runtimes.generation_canary import written
from toolkit.runtimes.generative import DEFAULT_NUM_TOKENS, Sizes, dtype_of
from toolkit.runtimes.program_options import count_of, value_of
from toolkit.runtimes.trtllm_guards import CHUNKED_PREFILL, asked_features

GENERATIVE = ("trtllm", "triton", "vllm", "sglang", "transformers")
# Of models whose config does not say how long a text may be.
ASSUMED_LENGTH = 2048
# Where nothing says how large a block is: the largest that is a default somewhere.
BLOCK_TOKENS = 32
_SIZES: Mapping[str, Callable[[Service, int | None], Sizes]] = {
    "vllm": vllm.sizes,
    "sglang": sglang.sizes,
    "transformers": transformers.sizes,
}
_CHUNKED_BY_DEFAULT = ("vllm", "sglang")
_OFF = (False, "false", -1)


@dataclass(frozen=True)
class Served:
    """What is served: the engine's own facts and recipe, or a model by its ``config.json``."""

    engine: Mapping[str, Any] | None = None
    recipe: Recipe | None = None
    config: Mapping[str, Any] | None = None

    def limit(self, name: str) -> int | None:
        """A limit of the engine as it was built, else as its recipe says."""
        built = (self.engine or {}).get("limits")
        told = built.get(name) if isinstance(built, Mapping) else None
        if isinstance(told, int):
            return told
        return getattr(self.recipe.limits, name, None) if self.recipe is not None else None

    @property
    def positions(self) -> int | None:
        """Tokens that the model was made for."""
        config = self.config or {}
        inner = config.get("text_config")
        found = (inner if isinstance(inner, Mapping) else config).get("max_position_embeddings")
        return found if isinstance(found, int) else None


def reach(service: Service, served: Served) -> Reach:
    """What long prompts must pass, and what a prompt may have beside its answer."""
    chunked = chunked_prefill(service)
    sizes = _SIZES[service.runtime](service, served.positions) if service.runtime in _SIZES else _sizes(service, served)
    asked = written(service, served.recipe)
    longest = (sizes.max_seq_len or ASSUMED_LENGTH) - max(MAX_TOKENS, asked.max_tokens)
    told = _number(service.options, "max_input_len") or served.limit("max_input_len") or longest
    lengths = (longest, told) if chunked else (longest, told, sizes.max_num_tokens)
    return Reach(sizes.tokens_per_block or BLOCK_TOKENS, sizes.max_num_tokens, max(1, min(lengths)), chunked)


def chunked_prefill(service: Service) -> bool:
    """Whether the server computes a long prompt in chunks: asked for, or on unless it is switched off."""
    if service.runtime in _CHUNKED_BY_DEFAULT:
        told = [value_of(service.options, "enable-chunked-prefill"), value_of(service.options, "chunked-prefill-size")]
        return value_of(service.options, "no-enable-chunked-prefill") is not True and not any(
            any(value is off or value == off for off in _OFF) for value in told if value is not None
        )
    return any(feature == CHUNKED_PREFILL for _, feature in asked_features(service.options))


def _sizes(service: Service, served: Served) -> Sizes:
    """Of an engine, or of a model that TensorRT-LLM loads."""
    options = service.options
    plugins = (served.engine or {}).get("plugin_config")
    block = plugins.get("tokens_per_block") if isinstance(plugins, Mapping) else None
    recipe_block = served.recipe.kv_cache.tokens_per_block if served.recipe is not None else None
    return Sizes(
        max_seq_len=_number(options, "max_seq_len") or served.limit("max_seq_len") or served.positions,
        max_num_tokens=_number(options, "max_num_tokens") or served.limit("max_num_tokens") or DEFAULT_NUM_TOKENS,
        tokens_per_block=_number(options, "tokens_per_block") or (block if isinstance(block, int) else recipe_block),
    )


def _number(options: Mapping[str, Any], name: str) -> int | None:
    """A whole number that the options set, however deep they are nested."""
    found = count_of(options, name)
    if found is not None:
        return found
    nested = (_number(value, name) for value in options.values() if isinstance(value, Mapping))
    return next((number for number in nested if number is not None), None)


def dtype(service: Service, served: Served, stored: str) -> str:
    """The data type that the service computes in; ``stored``: of the model's weights."""
    built = (served.engine or {}).get("dtype")
    named = built or dtype_of(service.options) or stored
    return named if named in ("float32", "float16", "bfloat16") else stored


def quantized(service: Service, served: Served) -> str | None:
    """How weights or cache are quantised: by how much right answers differ then is not measured; None: they are not."""
    told = (served.engine or {}).get("quantization")
    if isinstance(told, Mapping) and (named := next((value for value in told.values() if value), None)):
        return str(named)
    config = (served.config or {}).get("quantization_config")
    if isinstance(config, Mapping):
        return str(config.get("quant_method") or config.get("quant_algo") or "quantization_config")
    for name in ("quantization", "kv-cache-dtype", "load-in-4bit", "load-in-8bit"):
        value = value_of(service.options, name)
        if value not in (None, False, "auto", "none", *("bfloat16", "float16")):
            return f"{name} {value}"
    return None
