"""Every file and program that a deployment names, found on this machine; all that is missing is told at once."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from toolkit.assemble import adopted
from toolkit.assemble.placing import collect
from toolkit.config import load
from toolkit.config.load import LoadedDeployment, LoadedRecipe
from toolkit.config.models import Service
from toolkit.errors import ManyFaultsError, ToolkitError
from toolkit.files import read_json
from toolkit.home import Home
from toolkit.store import Entry, Store

T = TypeVar("T")


@dataclass(frozen=True)
class EnginePaths:
    """The recipe of an engine and the interpreter it is built with; ``adopted``: it is in the store already."""

    recipe: LoadedRecipe
    python: Path
    adopted: Entry | None = None


@dataclass(frozen=True)
class Paths:
    """``pythons`` and ``models`` by service, ``engines`` by engine name."""

    pythons: Mapping[str, Path]
    models: Mapping[str, Path]
    engines: Mapping[str, EnginePaths]

    def source(self, name: str, service: Service) -> Path | None:
        """The Hugging Face folder that the service's weights come from; None when there is none here."""
        if service.engine is None or service.engine not in self.engines:
            return self.models.get(name)
        recipe = self.engines[service.engine].recipe
        with suppress(ToolkitError):
            return load.resolve(recipe.file, recipe.model.model) if recipe.model.model is not None else None
        return None


def as_written(deployment: LoadedDeployment) -> Paths:
    """Paths for a plan that is made elsewhere: as the file writes them; recipes and models where they happen to be.

    Raises: ManyFaultsError with the faults of the recipes that are here.
    """
    faults: list[ToolkitError] = []
    services, environments, own = deployment.model.services, deployment.model.environments, Path("python3")
    pythons = {
        name: environments[service.environment].interpreter if service.environment else own
        for name, service in services.items()
    }
    models = {name: service.model for name, service in services.items()}
    named = deployment.model.engines
    engines = {name: collect(faults, partial(engine_as_written, deployment, name, own)) for name in named}
    if wrong := tuple(fault for fault in faults if fault.code != "not_found"):
        raise ManyFaultsError(wrong)
    return Paths(pythons, _present(models), _present(engines))


def engine_as_written(deployment: LoadedDeployment, name: str, own: Path) -> EnginePaths:
    """The recipe of an engine, and its interpreter, which need not be there; ``own``: where none is named.

    Raises: ToolkitError, ManyFaultsError as ``config.load.recipe`` does.
    """
    use, environments = deployment.model.engines[name], deployment.model.environments
    interpreter = environments[use.environment].interpreter if use.environment else own
    if use.recipe is None:
        return EnginePaths(adopted.recipe(deployment, use, None), interpreter)
    recipe = load.resolve(deployment.file, use.recipe, deployment.where(f"engines.{name}.recipe"))
    return EnginePaths(load.recipe(recipe), interpreter)


def find(deployment: LoadedDeployment, store: Store | None = None) -> Paths:
    """Absolute paths of all interpreters, models and recipes; ``store``: of adopted engines, left out: this home's.

    Raises: ManyFaultsError with each path that is not there, each recipe's faults among them.
    """
    faults: list[ToolkitError] = []
    services, engines = deployment.model.services, deployment.model.engines
    pythons = {name: collect(faults, partial(python, deployment, each.environment)) for name, each in services.items()}
    named = {name: each.model for name, each in services.items() if each.model is not None}
    models = {name: collect(faults, partial(model, deployment, name, value)) for name, value in named.items()}
    recipes = {name: collect(faults, partial(engine, deployment, name, store)) for name in engines}
    if faults:
        raise ManyFaultsError(_told_once(faults))
    return Paths(_present(pythons), _present(models), _present(recipes))


def python(deployment: LoadedDeployment, environment: str | None) -> Path:
    """The interpreter of an environment; coexist's own when none is named.

    Raises: ToolkitError when there is none, or it cannot be executed.
    """
    if environment is None:
        return Path(sys.executable)
    named = deployment.model.environments[environment]
    if named.image is not None:
        return named.interpreter  # inside the image: nothing of this machine
    where = deployment.where(f"environments.{environment}.python")
    found = load.resolve(deployment.file, named.interpreter, where)
    if not found.is_file() or not os.access(found, os.X_OK):
        raise ToolkitError(f"'{found}' is no program", where, "Name the Python interpreter itself.", code="no_python")
    return found


def model(deployment: LoadedDeployment, service: str, value: Path) -> Path:
    """The model folder of a service.

    Raises: ToolkitError when there is none, or it is no Hugging Face folder.
    """
    where = deployment.where(f"services.{service}.model")
    folder = load.resolve(deployment.file, value, where)
    asked = deployment.model.services[service]
    if asked.runtime == "triton" and asked.engine is None:
        return _repository(folder, where)
    if asked.runtime != "command" and not (folder / "config.json").is_file():
        raise ToolkitError(
            f"'{folder}' has no config.json", where, "Name a folder in Hugging Face's format.", code="not_a_model"
        )
    if asked.runtime != "command" and (other := _not_hugging_face(folder)):
        raise ToolkitError(f"'{folder}' is {other[0]}", where, other[1], code="not_a_model")
    return folder


def _not_hugging_face(folder: Path) -> tuple[str, str] | None:
    """What a folder is whose config.json is TensorRT-LLM's own, and what to do with it; None: it may be a model."""
    told: dict[str, Any] = {}
    with suppress(ToolkitError):  # what is damaged is told where it is used
        found = read_json(folder / "config.json")
        told = found if isinstance(found, dict) else {}
    if not told.keys().isdisjoint(("build_config", "builder_config")):
        adopt = f"Take it in with 'coexist engines adopt {folder}' and name it: 'engines: {{NAME: {{adopted: …}}}}'."
        return "an engine of TensorRT-LLM, no model", adopt
    if "mapping" in told and "architecture" in told and "architectures" not in told:
        hint = "Name it as 'checkpoint' in a recipe (builder: trtllm), or name the Hugging Face folder it came from."
        return "a converted checkpoint of TensorRT-LLM, no model", hint
    return None


def _repository(folder: Path, where: str) -> Path:
    if not any(folder.glob("*/config.pbtxt")):
        hint = "Name a folder that has MODEL/config.pbtxt, or serve an engine: write 'engine'."
        raise ToolkitError(f"'{folder}' is no model repository of Triton", where, hint, code="not_a_repository")
    return folder


def engine(deployment: LoadedDeployment, name: str, store: Store | None = None) -> EnginePaths:
    """The recipe and interpreter of one of the deployment's engines.

    Raises: ToolkitError, ManyFaultsError as ``config.load.recipe`` does.
    """
    use = deployment.model.engines[name]
    if use.recipe is None:
        return _adopted(deployment, name, store or Store(Home.find().root))
    if use.environment is not None and deployment.model.environments[use.environment].image is not None:
        raise ToolkitError(
            "engines are built in an environment of this machine, not in an image",
            deployment.where(f"engines.{name}.environment"),
            "Name one with 'python', or build in the image and adopt the engine: coexist engines adopt DIR.",
            code="image_build",
        )
    recipe = load.resolve(deployment.file, use.recipe, deployment.where(f"engines.{name}.recipe"))
    return EnginePaths(load.recipe(recipe), python(deployment, use.environment))


def _adopted(deployment: LoadedDeployment, name: str, store: Store) -> EnginePaths:
    use = deployment.model.engines[name]
    entry = adopted.find(store, str(use.adopted), deployment.where(f"engines.{name}.adopted"))
    if use.model is not None:
        load.resolve(deployment.file, use.model, deployment.where(f"engines.{name}.model"))
    return EnginePaths(adopted.recipe(deployment, use, entry), python(deployment, use.environment), entry)


def _told_once(faults: list[ToolkitError]) -> tuple[ToolkitError, ...]:
    return tuple({str(fault): fault for fault in faults}.values())


def _present(found: Mapping[str, T | None]) -> dict[str, T]:
    return {name: value for name, value in found.items() if value is not None}
