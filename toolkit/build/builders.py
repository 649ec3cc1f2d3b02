"""Engines by recipe: which builder makes it, and what would be run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from toolkit.build import torch_builder
from toolkit.build.engine import BuiltEngine
from toolkit.build.steps import Report
from toolkit.config.load import LoadedRecipe
from toolkit.errors import ToolkitError
from toolkit.store import Store


def ensure(
    loaded: LoadedRecipe,
    python: Path,
    store: Store,
    *,
    force: bool = False,
    report: Report = lambda line: None,
    device: str | None = None,
    environ: Mapping[str, str] = os.environ,
) -> BuiltEngine:
    """The recipe's engine for the environment of ``python``, reused or built now.

    ``device``: ``cpu`` or ``cuda`` where the service that uses it decides; None leaves it to the recipe.

    Raises: ToolkitError when something a person can change keeps it from being built.
    """
    _check_builder(loaded)
    return torch_builder.ensure(loaded, python, store, force=force, report=report, device=device, environ=environ)


def describe(
    loaded: LoadedRecipe,
    python: Path,
    store: Store,
    *,
    device: str | None = None,
    environ: Mapping[str, str] = os.environ,
) -> BuiltEngine:
    """What ``ensure`` would do, with the exact commands; writes nothing.

    Raises: ToolkitError as ``ensure`` does for what can be seen beforehand.
    """
    _check_builder(loaded)
    return torch_builder.describe(loaded, python, store, device=device, environ=environ)


def _check_builder(loaded: LoadedRecipe) -> None:
    if loaded.model.builder == "trtllm":
        raise ToolkitError(
            "builder trtllm is not in this version yet",
            loaded.where("builder"),
            "Use 'builder: torch'.",
            code="builder",
        )
