"""Reads what a person wrote: a deployment, a recipe. Every fault of a file is told at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Literal, TypeAlias, TypeVar

from pydantic import BaseModel, ValidationError

from toolkit.config import faults, references
from toolkit.config.document import Document, Fault, KeyPath, dotted, read
from toolkit.config.models import Deployment, EngineUse, Recipe, Service
from toolkit.errors import ManyFaultsError, ToolkitError
from toolkit.names import nearest

M = TypeVar("M", bound=BaseModel)
DECIDING = {"runtime", "engine", "model", "argv"}  # which of them a service needs depends on the others


@dataclass(frozen=True)
class Loaded(Generic[M]):
    """A sound deployment or recipe, and where its keys are written."""

    model: M
    document: Document

    @property
    def file(self) -> Path:
        return self.document.file

    def where(self, key_path: str) -> str:
        """``file:line key.path`` of a key such as ``services.llm.gpus``, for messages."""
        return self.document.where(key_path)


LoadedDeployment: TypeAlias = Loaded[Deployment]
LoadedRecipe: TypeAlias = Loaded[Recipe]


def deployment(path: Path | str) -> LoadedDeployment:
    """The deployment in a file.

    Raises: ToolkitError when there is no such file or no YAML in it; ManyFaultsError with all its faults.
    """
    document = _read_kind(Path(path), "deployment")
    own = faults.of_model(Deployment, document.content)
    model = _validated(Deployment, document, own, _between_entries(document.content, own))
    return Loaded(model, document)


def recipe(path: Path | str) -> LoadedRecipe:
    """The recipe in a file.

    Raises: ToolkitError when there is no such file or no YAML in it; ManyFaultsError with all its faults.
    """
    document = _read_kind(Path(path), "recipe")
    own = faults.of_model(Recipe, document.content)
    between = () if own else references.of_recipe(Recipe.model_validate(document.content))
    model = _validated(Recipe, document, own, between)
    return Loaded(model, document)


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
    near = next(filter(None, map(_like, places)), None)
    hints = [f"Did you mean '{near}'?"] if near else []
    if not value.is_absolute():
        hints.append(f"Looked for {', '.join(str(place) for place in places)}.")
    hint = " ".join(hints) or "Put it there, or name what you have."
    raise ToolkitError(f"'{value}' does not exist", where or str(base), hint, code="not_found")


def _like(missing: Path) -> Path | None:
    """What is in the same folder under nearly the same name."""
    try:
        near = nearest(missing.name, (path.name for path in missing.parent.iterdir()))
    except OSError:
        return None
    return missing.with_name(near) if near else None


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


def _validated(model: type[M], document: Document, own: Iterable[Fault], cross: Iterable[Fault]) -> M:
    found = (*document.faults, *own, *cross)
    if found:
        raise ManyFaultsError(tuple(_error(document, fault) for fault in _in_file_order(document, found)))
    return model.model_validate(document.content)


def _in_file_order(document: Document, found: Iterable[Fault]) -> list[Fault]:
    return sorted(dict.fromkeys(found), key=lambda fault: fault.line or document.line(dotted(fault.path)))


def _error(document: Document, fault: Fault) -> ToolkitError:
    key_path = dotted(fault.path)
    line = fault.line or document.line(key_path)
    where = f"{document.file}:{line} {key_path}".rstrip()
    return ToolkitError(fault.what, where, fault.hint, code="config", **dict(fault.details))


def _between_entries(content: Mapping[str, Any], own: Iterable[Fault]) -> Iterable[Fault]:
    """Faults between entries, seen as far as their keys are sound: a faulty key is left out, its entry stays."""
    faulty = {fault.path[:3] for fault in own}
    unsure = {path[1] for path in faulty if path[0] == "services" and path[-1] in DECIDING}
    names = references.Names(*(tuple(_entries(content, key)) for key in ("services", "engines", "environments")))
    services = _sound_entries(Service, content, "services", faulty, {"runtime": "command"})
    engines = _sound_entries(EngineUse, content, "engines", faulty, {"recipe": "-"})
    port = content.get("control_port")
    return references.of_deployment(
        services, engines, names, port if isinstance(port, int) else None, {str(name) for name in unsure}
    )


def _entries(content: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    entries = content.get(key)
    return entries if isinstance(entries, dict) else {}


def _sound_entries(
    model: type[M], content: Mapping[str, Any], section: str, faulty: Set[KeyPath], stand_in: Mapping[str, str]
) -> dict[str, M]:
    sound: dict[str, M] = {}
    for name, entry in _entries(content, section).items():
        if not isinstance(entry, dict):
            continue
        kept = {key: value for key, value in entry.items() if (section, name, key) not in faulty}
        found = _sound(model, {**({} if "adopted" in kept else stand_in), **kept})
        if found is not None:
            sound[name] = found
    return sound


def _sound(model: type[M], content: Any) -> M | None:
    try:
        return model.model_validate(content)
    except ValidationError:
        return None
