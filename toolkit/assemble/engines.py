"""The engines that a file names, each with its interpreter and its device: made, reused or described."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from toolkit import build
from toolkit.assemble import adopted, adoption, paths
from toolkit.assemble.paths import EnginePaths, Paths
from toolkit.build import BuiltEngine
from toolkit.build.trtllm_adopt import Surroundings
from toolkit.build.trtllm_machine import Machine
from toolkit.config import load
from toolkit.config.load import LoadedDeployment, LoadedRecipe
from toolkit.errors import ToolkitError, UsageError
from toolkit.names import suggestion
from toolkit.store import Entry, Store

AskMachine = Callable[[], Machine]


@dataclass(frozen=True)
class Adopted:
    """An engine that is in the store already, where it is to run, and where the deployment names it."""

    entry: Entry
    around: Surroundings
    where: str


@dataclass(frozen=True)
class Wanted:
    """One engine to be; ``device`` None: its recipe says. ``adopted``: there is nothing to build."""

    recipe: LoadedRecipe
    python: Path
    device: str | None = None
    adopted: Adopted | None = None


def of_deployment(deployment: LoadedDeployment, found: Paths) -> dict[str, Wanted]:
    """Every engine of a deployment, for the device of the service that uses it."""
    return {name: _wanted(deployment, name, engine) for name, engine in found.engines.items()}


def of_file(file: Path, only: str | None, *, what_if: bool = False) -> list[Wanted]:
    """The engines of a deployment or of one recipe; with ``what_if`` their environments need not be there.

    Raises: ToolkitError, also when there is no engine ``only``.
    """
    found = _of_recipe(file) if load.kind(file) == "recipe" else _of_deployment(file, what_if)
    if only is not None and only not in found:
        hint = suggestion(only, found) or "There are none."
        raise ToolkitError(f"no engine '{only}'", str(file), hint, code="unknown_engine")
    return [wanted for name, wanted in found.items() if only in (None, name)]


def _of_recipe(file: Path) -> dict[str, Wanted]:
    recipe = load.recipe(file)
    return {recipe.model.name: Wanted(recipe, Path(sys.executable))}


def _of_deployment(file: Path, what_if: bool) -> dict[str, Wanted]:
    deployment = load.deployment(file)
    look = _as_written if what_if else paths.engine
    return {name: _wanted(deployment, name, look(deployment, name)) for name in deployment.model.engines}


def _as_written(deployment: LoadedDeployment, name: str) -> EnginePaths:
    """Of an engine for a look at what another release would build."""
    if deployment.model.engines[name].recipe is None:
        what = "an adopted engine is what it is: it cannot be looked at as built by another release"
        where = deployment.where(f"engines.{name}.adopted")
        raise ToolkitError(what, where, "Remove --trtllm-version, or name another with --engine.", code="adopted")
    return paths.engine_as_written(deployment, name, Path(sys.executable))


def _wanted(deployment: LoadedDeployment, name: str, engine: EnginePaths) -> Wanted:
    return Wanted(engine.recipe, engine.python, device_of(deployment, name), _adopted(deployment, name, engine))


def _adopted(deployment: LoadedDeployment, name: str, engine: EnginePaths) -> Adopted | None:
    if engine.adopted is None:
        return None
    around = adoption.of_engine(deployment, name, engine.python, os.environ)
    return Adopted(engine.adopted, around, deployment.where(f"engines.{name}.adopted"))


def device_of(deployment: LoadedDeployment, engine: str) -> str | None:
    """``cuda`` where a service with GPUs uses the engine, ``cpu`` where one without does; None: no service uses it."""
    users = [service for service in deployment.model.services.values() if service.engine == engine]
    if not users:
        return None
    return "cuda" if any(service.gpus.size for service in users) else "cpu"


def ensure(
    wanted: Wanted, store: Store, report: Callable[[str], None], machine: AskMachine, *, force: bool = False
) -> BuiltEngine:
    """The engine, reused or built now; an adopted one judged. Raises: ToolkitError."""
    if wanted.adopted is not None:
        return _judged(wanted.adopted, store, machine)
    return build.ensure(
        wanted.recipe, wanted.python, store, force=force, report=report, device=wanted.device, machine=machine
    )


def describe(wanted: Wanted, store: Store, machine: AskMachine, trtllm_version: str | None = None) -> BuiltEngine:
    """What ``ensure`` would do; nothing is built. Raises: ToolkitError."""
    if wanted.adopted is not None:
        return _judged(wanted.adopted, store, machine)
    return build.describe(
        wanted.recipe, wanted.python, store, device=wanted.device, machine=machine, trtllm_version=trtllm_version
    )


def _judged(named: Adopted, store: Store, machine: AskMachine) -> BuiltEngine:
    there = [gpu.compute_capability for gpu in machine().gpus if gpu.compute_capability]
    around = replace(named.around, capabilities=tuple(dict.fromkeys(there)))
    return adopted.judged(named.entry, store, around, named.where)


def check_what_if(file: Path, wanted: list[Wanted], dry_run: bool) -> None:
    """Raises ToolkitError when naming a release would change nothing."""
    if not dry_run:
        raise UsageError("--trtllm-version is for looking only", hint="Add --dry-run.", code="usage")
    if not any(each.recipe.model.builder == "trtllm" for each in wanted):
        raise ToolkitError("no engine of it is built with TensorRT-LLM", str(file), "Remove --trtllm-version.")
