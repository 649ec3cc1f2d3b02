"""Engines by recipe: which builder makes it, and what would be run."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from toolkit.build import torch_builder, trtllm_builder
from toolkit.build.engine import BuiltEngine
from toolkit.build.steps import Report
from toolkit.build.trtllm_machine import Machine
from toolkit.config.load import LoadedRecipe
from toolkit.store import Store

AskMachine = Callable[[], "Machine | None"]


def ensure(
    loaded: LoadedRecipe,
    python: Path,
    store: Store,
    *,
    force: bool = False,
    report: Report = lambda line: None,
    device: str | None = None,
    machine: AskMachine = lambda: None,
    environ: Mapping[str, str] = os.environ,
) -> BuiltEngine:
    """The recipe's engine for the environment of ``python``, reused or built now.

    ``device``: ``cpu`` or ``cuda`` where the service that uses it decides; None leaves it to the recipe. ``machine`` is
    asked by builders that need a whole GPU.

    Raises: ToolkitError when something a person can change keeps it from being built.
    """
    if loaded.model.builder == "trtllm":
        return trtllm_builder.ensure(
            loaded, python, store, force=force, report=report, machine=machine(), environ=environ
        )
    return torch_builder.ensure(loaded, python, store, force=force, report=report, device=device, environ=environ)


def describe(
    loaded: LoadedRecipe,
    python: Path,
    store: Store,
    *,
    device: str | None = None,
    machine: AskMachine = lambda: None,
    trtllm_version: str | None = None,
    environ: Mapping[str, str] = os.environ,
) -> BuiltEngine:
    """What ``ensure`` would do, with the exact commands; writes nothing.

    ``trtllm_version``: as with that TensorRT-LLM, which need not be installed; no machine is asked then.

    Raises: ToolkitError as ``ensure`` does for what can be seen beforehand.
    """
    if loaded.model.builder == "trtllm":
        known = None if trtllm_version else machine()
        return trtllm_builder.describe(
            loaded, python, store, trtllm_version=trtllm_version, machine=known, environ=environ
        )
    return torch_builder.describe(loaded, python, store, device=device, environ=environ)
