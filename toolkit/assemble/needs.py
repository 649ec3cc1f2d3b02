"""What each service needs of a GPU's memory, read from its model's config and its recipe's limits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from toolkit.assemble.paths import Paths
from toolkit.config import load
from toolkit.config.load import LoadedRecipe
from toolkit.config.models import Deployment, Recipe, Service
from toolkit.errors import ToolkitError
from toolkit.files import json_object
from toolkit.plan.need import Need, from_model_config
from toolkit.runtimes import sglang, transformers, trtllm_served, vllm
from toolkit.runtimes.generative import Sizes

_SIZES: Mapping[str, Callable[[Service, int | None], Sizes]] = {
    "trtllm": trtllm_served.sizes,
    "vllm": vllm.sizes,
    "sglang": sglang.sizes,
    "transformers": transformers.sizes,
}
# Of the frontend's --max-batch.
DEFAULT_MAX_BATCH = 32


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
        if engine and (need := _of_checkpoint(engine.recipe, service)):
            found[name] = need
            continue
        folder = paths.source(name, service)
        config = json_object(folder / "config.json") if folder is not None else None
        if folder is not None and config is not None and (need := _need(config, folder, service, recipe)):
            found[name] = need
    return found


def _need(config: Mapping[str, Any], folder: Path, service: Service, recipe: Recipe | None) -> Need | None:
    weights_bytes = sum(path.stat().st_size for path in folder.glob("*.safetensors")) or None
    if recipe is not None:
        return _of_engine(config, weights_bytes, recipe, service)
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


def _of_checkpoint(recipe: LoadedRecipe, service: Service) -> Need | None:
    """The need of an engine of a converted checkpoint, which decides over data types; None: there is none to read."""
    if recipe.model.checkpoint is None:
        return None
    with suppress(ToolkitError):
        folder = load.resolve(recipe.file, recipe.model.checkpoint)
        config = json_object(folder / "config.json")
        if config is not None and config.get("num_hidden_layers") and "mapping" in config:
            kv_algo = (config.get("quantization") or {}).get("kv_cache_quant_algo")
            weights_bytes = sum(path.stat().st_size for path in folder.glob("rank*.safetensors")) or None
            told = {**config, "head_dim": config.get("head_size")}
            asked = recipe.model.model_copy(update={"dtype": "auto"})
            return _of_engine(told, weights_bytes, asked, service, kv_dtype_bytes=1 if kv_algo else None)
    return None


def _of_engine(
    config: Mapping[str, Any],
    weights_bytes: int | None,
    recipe: Recipe,
    service: Service,
    kv_dtype_bytes: int | None = None,
) -> Need:
    """A checkpoint whose recipe does not say by how much it is divided has the service's sizes, or is refused later."""
    said = recipe.model_fields_set
    return from_model_config(
        config,
        weights_bytes,
        tp_size=recipe.tp_size if "tp_size" in said else service.tp_size,
        pp_size=recipe.pp_size if "pp_size" in said else service.pp_size,
        kv_dtype_bytes=kv_dtype_bytes,
        max_seq_len=recipe.limits.max_seq_len,
        max_batch_size=recipe.limits.max_batch_size,
        max_num_tokens=recipe.limits.max_num_tokens,
        tokens_per_block=recipe.kv_cache.tokens_per_block,
        dtype=None if recipe.dtype == "auto" else recipe.dtype,
        graph_pool_bytes=0,
        fused_attention=recipe.fmha == "enable",
    )


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
