"""What decides over an engine of TensorRT-LLM, and where its parts are kept."""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from toolkit.build.trtllm_checkpoint import CONFIG, Source, find
from toolkit.build.trtllm_machine import BuildGpu
from toolkit.build.trtllm_options import Asked
from toolkit.build.trtllm_versions import BuildRelease
from toolkit.config.load import LoadedRecipe
from toolkit.store import Store, fingerprint, hash_files

# Counts up when what the same recipe is built into changes.
BUILDER_VERSION = 1
FILES = ("*.safetensors", "*.json")
# Of the recipe's options: they change how an engine is built, not what it is.
_HOW = ("workers", "workspace_budget", "log_level", "monitor_memory", "visualize_network")


def files(source: Source, firm: bool) -> dict[str, str]:
    """Hashes of the checkpoint; where it is not there, or not to be read (not ``firm``), of what its config says."""
    if firm:
        return hash_files(source.checkpoint.folder, FILES)
    known = source.conversion.model_config if source.conversion else source.checkpoint.config
    return {CONFIG: fingerprint(known)}


def model_files(loaded: LoadedRecipe, root: Path, hash_cache: Path | None) -> Mapping[str, str] | None:
    """Hashes of the model, where coexist itself names the converted checkpoint after them."""
    recipe = loaded.model
    if recipe.checkpoint is not None or recipe.convert_script is None or recipe.model is None:
        return None
    source = find(loaded, root)
    return hash_files(source.conversion.model_dir, FILES, hash_cache) if source.conversion else None


def conversion_folder(
    loaded: LoadedRecipe, store: Store, release: BuildRelease, files: Mapping[str, str] | None
) -> Path:
    """Where a checkpoint goes that the recipe does not name: one folder for each model and way to convert it."""
    recipe = loaded.model
    asked = recipe.model_dump(mode="json", include={"model", "convert_script", "dtype", "tp_size", "pp_size"})
    digits = fingerprint({"recipe": asked, "files": dict(files or {}), "release": release.version})[:16]
    return store.root / "checkpoints" / f"{recipe.name}-{digits}"


def engine_fingerprint(asked: Asked, gpu: BuildGpu | None, files: Mapping[str, str]) -> str:
    """All that an engine depends on; paths and names are no part of it."""
    recipe = asked.recipe.model_dump(mode="json", include={"fmha", "limits", "kv_cache", "options"})
    options = {key: value for key, value in recipe["options"].items() if key not in _HOW}
    return fingerprint(
        {
            "builder": "trtllm",
            "builder_version": BUILDER_VERSION,
            "release": asked.release.version,
            "tensorrt": asked.release.tensorrt,
            "recipe": {**recipe, "options": options},
            "checkpoint": dict(files),
            "gpu": [gpu.name, gpu.compute_capability] if gpu else None,
            "machine": platform.machine(),
        }
    )


def workers(asked: Asked, gpus: Sequence[BuildGpu]) -> int:
    """One for each rank, as far as there are GPUs; a recipe's ``options.workers`` is the most."""
    ranks = asked.checkpoint.world_size
    named: int = asked.recipe.options.get("workers", ranks)
    return max(1, min(ranks, named, len(gpus) or ranks))


def timing_cache(store: Store, release: BuildRelease, gpu: BuildGpu | None) -> Path:
    """Where the builder's timing cache of a release and a kind of GPU is kept."""
    kind = re.sub(r"[^a-z0-9]+", "-", (gpu.name or gpu.uuid).lower()) if gpu else "unknown-gpu"
    return store.root / "cache" / "trtllm" / f"{release.version}-{kind}" / "model.cache"
