"""A first deployment's surroundings: the files of a checkout that it may name, and what is not in place yet."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

from toolkit.assemble import paths
from toolkit.assemble.placing import collect
from toolkit.config import load
from toolkit.config.load import LoadedDeployment
from toolkit.errors import ToolkitError

CHECKOUT = Path(__file__).resolve().parents[2]


def sample(file: Path, relative: str, checkout: Path | None = None) -> str:
    """How ``file`` is to name a file of the checkout: as written where that is found, else by its whole path, if any.

    In quotes where YAML wants them. Found means from wherever coexist is called, so not in the working directory.
    """
    folder = file.absolute().parent
    if any((place / relative).exists() for place in (folder, folder.parent)):
        return relative
    found = (checkout or CHECKOUT) / relative
    there = str(found) if found.exists() else relative
    return there if re.fullmatch(r"[\w./+-]+", there) else "'" + there.replace("'", "''") + "'"


def missing(file: Path) -> tuple[ToolkitError, ...]:
    """What the deployment names and this machine lacks: interpreters, recipes, models, those of recipes among them."""
    deployment = load.deployment(file)
    faults: list[ToolkitError] = []
    collect(faults, partial(paths.find, deployment))
    faults += _of_recipes(deployment)
    return tuple({str(fault): fault for fault in faults}.values())


def _of_recipes(deployment: LoadedDeployment) -> Iterator[ToolkitError]:
    for use in deployment.model.engines.values():
        with suppress(ToolkitError):  # a recipe that is not there or not sound is told already
            recipe = load.recipe(load.resolve(deployment.file, use.recipe or Path()))
            faults: list[ToolkitError] = []
            if recipe.model.model is not None:
                collect(faults, partial(load.resolve, recipe.file, recipe.model.model, recipe.where("model")))
            yield from faults
