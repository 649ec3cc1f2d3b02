"""What each service needs of a GPU's memory, read from its model's config and its recipe's limits."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from toolkit.assemble.paths import Paths
from toolkit.config.models import Deployment, Recipe, Service
from toolkit.plan.need import Need, from_model_config
from toolkit.runtimes import sglang, transformers, vllm
from toolkit.runtimes.generative import Sizes
from toolkit.units import GIB

_SIZES: Mapping[str, Callable[[Service, int | None], Sizes]] = {
    "vllm": vllm.sizes,
    "sglang": sglang.sizes,
    "transformers": transformers.sizes,
}
# Of the frontend's --max-batch.
DEFAULT_MAX_BATCH = 32


@dataclass(frozen=True)
class _Server:
    """The options of a program that decide over its memory, with their defaults; ``graph_pool_bytes`` at most."""

    max_seq_len: str
    max_num_tokens: tuple[str, int]
    max_batch_size: tuple[str, int]
    tokens_per_block: int
    graph_pool_bytes: int


# Capturing CUDA graphs took 1 to 3 GiB in public reports.
_GRAPH_POOL_BYTES = 3 * GIB
_SERVERS = {
    "trtllm": _Server("max_seq_len", ("max_num_tokens", 8192), ("max_batch_size", 2048), 32, _GRAPH_POOL_BYTES),
}


def read(deployment: Deployment, paths: Paths) -> dict[str, Need]:
    """The need of every service that has GPUs and whose model can be read; the others' stays unknown."""
    return _read(deployment, paths, on_gpus=True)


def host_bytes(deployment: Deployment, paths: Paths) -> dict[str, int]:
    """Bytes of main memory that services without GPUs take for their models; absent: unknown."""
    found = _read(deployment, paths, on_gpus=False)
    return {name: need.least_bytes for name, need in found.items() if need.least_bytes is not None}


def _read(deployment: Deployment, paths: Paths, *, on_gpus: bool) -> dict[str, Need]:
    found = {}
    for name, service in deployment.services.items():
        if bool(service.gpus.size) != on_gpus:
            continue
        engine = paths.engines.get(service.engine or "")
        recipe = engine.recipe.model if engine else None
        folder = paths.source(name, service)
        config = _config(folder) if folder is not None else None
        if folder is not None and config is not None and (need := _need(config, folder, service, recipe)):
            found[name] = need
    return found


def _need(config: Mapping[str, Any], folder: Path, service: Service, recipe: Recipe | None) -> Need | None:
    weights_bytes = sum(path.stat().st_size for path in folder.glob("*.safetensors")) or None
    if recipe is not None:
        return _of_engine(config, weights_bytes, recipe)
    if service.runtime in _SERVERS:
        return _of_model(config, weights_bytes, service, _SERVERS[service.runtime])
    if service.runtime in _SIZES:
        return _of_generative(config, weights_bytes, service)
    return _of_encoder(config, weights_bytes, service) if service.runtime == "flash" else None


def _of_generative(config: Mapping[str, Any], weights_bytes: int | None, service: Service) -> Need:
    """A language model that its server loads as it is; what it is limited to stands in its options."""
    text = config.get("text_config") or config
    sizes = _SIZES[service.runtime](service, text.get("max_position_embeddings"))
    return from_model_config(
        config,
        weights_bytes,
        tp_size=service.tp_size,
        pp_size=service.pp_size,
        max_seq_len=sizes.max_seq_len,
        max_batch_size=sizes.max_batch_size,
        max_num_tokens=sizes.max_num_tokens,
        tokens_per_block=sizes.tokens_per_block,
        dtype=sizes.dtype,
        kv_dtype_bytes=sizes.kv_dtype_bytes,
        graph_pool_bytes=sizes.graph_pool_bytes,
        fused_attention=service.attention != "vanilla",
    )


def _of_engine(config: Mapping[str, Any], weights_bytes: int | None, recipe: Recipe) -> Need:
    return from_model_config(
        config,
        weights_bytes,
        tp_size=recipe.tp_size,
        pp_size=recipe.pp_size,
        max_seq_len=recipe.limits.max_seq_len,
        max_batch_size=recipe.limits.max_batch_size,
        max_num_tokens=recipe.limits.max_num_tokens,
        tokens_per_block=recipe.kv_cache.tokens_per_block,
        dtype=None if recipe.dtype == "auto" else recipe.dtype,
        graph_pool_bytes=0,
        fused_attention=recipe.fmha == "enable",
    )


def _of_model(config: Mapping[str, Any], weights_bytes: int | None, service: Service, server: _Server) -> Need:
    """A model that its server loads itself, with the server's options or defaults."""
    given = {str(key).lstrip("-").replace("-", "_"): value for key, value in service.options.items()}
    text = config.get("text_config") or config
    length = given.get(server.max_seq_len, text.get("max_position_embeddings"))
    tokens, batch = (given.get(name, default) for name, default in (server.max_num_tokens, server.max_batch_size))
    return from_model_config(
        config,
        weights_bytes,
        tp_size=service.tp_size,
        pp_size=service.pp_size,
        max_seq_len=_count(length),
        max_batch_size=_count(batch),
        max_num_tokens=_count(tokens),
        tokens_per_block=server.tokens_per_block,
        graph_pool_bytes=server.graph_pool_bytes,
    )


def _count(value: Any) -> int | None:
    return value if type(value) is int and value >= 1 else None


def _of_encoder(config: Mapping[str, Any], weights_bytes: int | None, service: Service) -> Need:
    """An encoder keeps nothing between requests: no KV cache, no graphs."""
    batch, length = service.options.get("max_batch", DEFAULT_MAX_BATCH), config.get("max_position_embeddings")
    dtype = service.options.get("dtype", "auto")
    need = from_model_config(
        config,
        weights_bytes,
        max_batch_size=batch,
        max_num_tokens=batch * length if length else None,
        dtype=None if dtype == "auto" else dtype,
        graph_pool_bytes=0,
        fused_attention=service.attention != "vanilla",
    )
    return replace(need, kv_bytes_per_token=0)


def _config(folder: Path) -> Mapping[str, Any] | None:
    with suppress(OSError, ValueError):
        found = json.loads((folder / "config.json").read_bytes())
        return found if isinstance(found, dict) else None
    return None
