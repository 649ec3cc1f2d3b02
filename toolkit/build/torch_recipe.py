"""What a recipe with ``builder: torch`` asks for, checked, with everything that decides over its engine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolkit.build.environment import read_facts, require_packages
from toolkit.config.load import LoadedRecipe, resolve
from toolkit.config.models import Recipe
from toolkit.errors import ToolkitError
from toolkit.names import suggestion
from toolkit.store import fingerprint, hash_files

# Counts up when what the same recipe is built into changes.
BUILDER_VERSION = 4
OPTIONS = ("device", "inductor")
DEVICES = ("auto", "cpu", "cuda")
_MODEL_FILES = ("*.safetensors", "*.json", "*.jinja")


@dataclass(frozen=True)
class TorchRecipe:
    """One engine to build: the recipe, where its model is, for which device, and its fingerprint."""

    recipe: Recipe
    model_dir: Path
    python: Path
    device: str
    inductor: Mapping[str, Any]
    facts: Mapping[str, Any]
    fingerprint: str


def read(
    loaded: LoadedRecipe, python: Path, environ: Mapping[str, str], *, device: str | None, hash_cache: Path | None
) -> TorchRecipe:
    """The checked recipe; ``device`` overrides what the recipe's ``options.device`` says.

    Raises: ToolkitError when the recipe asks for what this builder does not offer, or model or packages are missing.
    """
    recipe = loaded.model
    _check_recipe(loaded)
    assert recipe.model is not None  # noqa: S101  config.references has seen to it
    model_dir = resolve(loaded.file, recipe.model, loaded.where("model"))
    facts = read_facts(python, environ)
    require_packages(facts, python)
    target = choose_device(device or recipe.options.get("device", "auto"), facts, loaded)
    inductor = recipe.options.get("inductor", {})
    files = hash_files(model_dir, _MODEL_FILES, hash_cache)
    name = fingerprint(fingerprint_parts(recipe, files, facts, target))
    return TorchRecipe(recipe, model_dir, python, target, inductor, facts, name)


def fingerprint_parts(
    recipe: Recipe, files: Mapping[str, str], facts: Mapping[str, Any], device: str
) -> dict[str, Any]:
    """All that an engine depends on; paths and names are no part of it."""
    asked = recipe.model_dump(mode="json", exclude={"name", "model", "version"})
    packages = facts["packages"]
    return {
        "builder": "torch",
        "builder_version": BUILDER_VERSION,
        "recipe": {**asked, "options": {**asked["options"], "device": device}},
        "model": dict(files),
        "torch": packages["torch"],
        "triton": packages.get("triton") if device == "cuda" else None,
        "machine": facts["machine"],
        "cpu_features": list(facts["cpu_features"]),
        "compute_capability": facts["compute_capability"] if device == "cuda" else None,
    }


def choose_device(asked: str, facts: Mapping[str, Any], loaded: LoadedRecipe) -> str:
    """``cpu`` or ``cuda``; ``auto`` takes the GPU where torch and the machine have one.

    Raises: ToolkitError when cuda is asked for and not there.
    """
    able = facts.get("torch_cuda") is not None and facts.get("compute_capability") is not None
    if asked == "auto":
        return "cuda" if able else "cpu"
    if asked == "cuda" and not able:
        lacking = "torch there is made for CPUs only" if facts.get("torch_cuda") is None else "no GPU is visible"
        raise ToolkitError(
            f"cannot build for cuda: {lacking}", loaded.where("options.device"), "Use 'device: cpu'.", code="device"
        )
    return asked


def _check_recipe(loaded: LoadedRecipe) -> None:
    recipe = loaded.model
    for key in recipe.options:
        if key not in OPTIONS:
            hint = suggestion(key, OPTIONS)
            raise ToolkitError(f"builder torch has no option '{key}'", loaded.where(f"options.{key}"), hint)
    if recipe.options.get("device", "auto") not in DEVICES:
        what = f"'{recipe.options['device']}' is no device"
        raise ToolkitError(what, loaded.where("options.device"), f"Known: {', '.join(DEVICES)}.")
    _check_inductor(recipe.options.get("inductor", {}), loaded)
    if recipe.fmha == "disable" and recipe.kv_cache.reuse:
        raise ToolkitError(
            "without fused attention the KV cache is not reused",
            loaded.where("kv_cache.reuse"),
            "Set 'reuse: false', or 'fmha: enable'.",
            code="fmha",
        )


def _check_inductor(settings: Any, loaded: LoadedRecipe) -> None:
    where = loaded.where("options.inductor")
    if not isinstance(settings, dict):
        raise ToolkitError("holds no settings", where, "Write 'inductor: {name: value}'.")
    try:
        json.dumps(settings)
    except (TypeError, ValueError) as error:
        raise ToolkitError(f"a value is no plain one: {error}", where, "Use numbers, texts, true or false.") from None
