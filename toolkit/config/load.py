"""Reads what a person wrote: a deployment, a recipe. Every fault of a file is told at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ValidationError

from toolkit.config import faults, references
from toolkit.config.document import Document, Fault, dotted, read
from toolkit.config.models import Deployment, EngineUse, Recipe, Service
from toolkit.errors import ManyFaultsError, ToolkitError

M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True)
class LoadedDeployment:
    """A sound deployment and where its keys are written."""

    model: Deployment
    document: Document

    @property
    def file(self) -> Path:
        return self.document.file

    def where(self, key_path: str) -> str:
        """``file:line key.path`` of a key such as ``services.llm.gpus``, for messages."""
        return self.document.where(key_path)


@dataclass(frozen=True)
class LoadedRecipe:
    """A sound recipe and where its keys are written."""

    model: Recipe
    document: Document

    @property
    def file(self) -> Path:
        return self.document.file

    def where(self, key_path: str) -> str:
        """``file:line key.path`` of a key such as ``limits.max_seq_len``, for messages."""
        return self.document.where(key_path)


def deployment(path: Path | str) -> LoadedDeployment:
    """The deployment in a file.

    Raises: ToolkitError when there is no such file or no YAML in it; ManyFaultsError with all its faults.
    """
    document = _read_kind(Path(path), "deployment")
    model = _validated(Deployment, document, _deployment_references(document.content))
    return LoadedDeployment(model, document)


def recipe(path: Path | str) -> LoadedRecipe:
    """The recipe in a file.

    Raises: ToolkitError when there is no such file or no YAML in it; ManyFaultsError with all its faults.
    """
    document = _read_kind(Path(path), "recipe")
    sound = _sound(Recipe, document.content)
    model = _validated(Recipe, document, references.of_recipe(sound) if sound else ())
    return LoadedRecipe(model, document)


def kind(path: Path | str) -> Literal["deployment", "recipe"]:
    """Which of the two a file is, by its keys.

    Raises: ToolkitError when it cannot be read or is neither.
    """
    document = _read_mapping(Path(path))
    found = _kind_of(document.content)
    if found is None:
        what = "is neither a deployment (it has no 'services') nor a recipe (it has no 'builder')"
        raise ToolkitError(what, str(path), "'coexist init FILE' writes a first deployment.")
    return found


def resolve(base: Path, value: Path, where: str | None = None) -> Path:
    """The existing file or folder that ``value`` means in file ``base``, as an absolute path.

    A relative path is looked for beside the file, in the folder above it, then in the working directory.

    Raises: ToolkitError that lists where it was looked for.
    """
    value = value.expanduser() if str(value).startswith("~/") else value
    folder = base.absolute().parent
    places = dict.fromkeys(place / value for place in (folder, folder.parent, Path.cwd()))
    for place in places:
        if place.exists():
            return place
    looked = ", ".join(str(place) for place in places)
    raise ToolkitError(f"'{value}' does not exist", where or str(base), f"Looked for {looked}.", code="not_found")


def _read_kind(path: Path, wanted: Literal["deployment", "recipe"]) -> Document:
    document = _read_mapping(path)
    found = _kind_of(document.content)
    if found not in {wanted, None}:
        hint = "Name the deployment; its 'engines:' name the recipes." if wanted == "deployment" else None
        raise ToolkitError(f"is a {found}, not a {wanted}", str(path), hint)
    return document


def _read_mapping(path: Path) -> Document:
    document = read(path)
    if document.content is None and not document.faults:
        raise ToolkitError("the file is empty", str(path), "'coexist init FILE' writes a first deployment.")
    if not isinstance(document.content, dict):
        what = f"{faults.shown(document.content)} where 'key: value' lines belong"
        raise ToolkitError(what, document.where(""), "See 'coexist schema deployment'.")
    return document


def _kind_of(content: Mapping[str, Any]) -> Literal["deployment", "recipe"] | None:
    if "services" in content:
        return "deployment"
    return "recipe" if "builder" in content else None


def _validated(model: type[M], document: Document, cross: Iterable[Fault]) -> M:
    found = (*document.faults, *faults.of_model(model, document.content), *cross)
    if found:
        raise ManyFaultsError(tuple(_error(document, fault) for fault in _in_file_order(document, found)))
    return model.model_validate(document.content)


def _in_file_order(document: Document, found: Iterable[Fault]) -> list[Fault]:
    return sorted(dict.fromkeys(found), key=lambda fault: fault.line or document.line(dotted(fault.path)))


def _error(document: Document, fault: Fault) -> ToolkitError:
    key_path = dotted(fault.path)
    line = fault.line or document.line(key_path)
    return ToolkitError(fault.what, f"{document.file}:{line} {key_path}".rstrip(), fault.hint, code="config")


def _deployment_references(content: Mapping[str, Any]) -> Iterable[Fault]:
    """Faults between entries; an entry with faults of its own still counts as defined, but is not looked into."""
    names = references.Names(*(tuple(_entries(content, key)) for key in ("services", "engines", "environments")))
    services, engines = _sound_entries(Service, content, "services"), _sound_entries(EngineUse, content, "engines")
    port = content.get("control_port")
    return references.of_deployment(services, engines, names, port if isinstance(port, int) else None)


def _entries(content: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    entries = content.get(key)
    return entries if isinstance(entries, dict) else {}


def _sound_entries(model: type[M], content: Mapping[str, Any], key: str) -> dict[str, M]:
    sound = {name: _sound(model, entry) for name, entry in _entries(content, key).items()}
    return {name: entry for name, entry in sound.items() if entry is not None}


def _sound(model: type[M], content: Any) -> M | None:
    try:
        return model.model_validate(content)
    except ValidationError:
        return None
