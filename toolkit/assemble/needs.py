"""What each service needs of a GPU's memory, read from its model's config and its recipe's limits."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from toolkit.assemble.paths import Paths
from toolkit.config.models import Deployment, Recipe, Service
from toolkit.plan.need import Need, from_model_config


def read(deployment: Deployment, paths: Paths) -> dict[str, Need]:
    """The need of every service that has GPUs and whose model can be read; the others' stays unknown."""
    found = {}
    for name, service in deployment.services.items():
        engine = paths.engines.get(service.engine or "")
        recipe = engine.recipe.model if engine else None
        folder = paths.source(name, service)
        config = _config(folder) if folder is not None and service.gpus.size else None
        if folder is not None and config is not None:
            found[name] = _need(config, folder, service, recipe)
    return found


def _need(config: Mapping[str, Any], folder: Path, service: Service, recipe: Recipe | None) -> Need:
    limits = recipe.limits if recipe else None
    return from_model_config(
        config,
        weights_bytes=sum(path.stat().st_size for path in folder.glob("*.safetensors")) or None,
        tp_size=recipe.tp_size if recipe else service.tp_size,
        pp_size=recipe.pp_size if recipe else service.pp_size,
        max_seq_len=limits.max_seq_len if limits else None,
        max_batch_size=limits.max_batch_size if limits else None,
        max_num_tokens=limits.max_num_tokens if limits else None,
        tokens_per_block=recipe.kv_cache.tokens_per_block if recipe else None,
        fused_attention=recipe is None or recipe.fmha == "enable",
    )


def _config(folder: Path) -> Mapping[str, Any] | None:
    with suppress(OSError, ValueError):
        found = json.loads((folder / "config.json").read_bytes())
        return found if isinstance(found, dict) else None
    return None
