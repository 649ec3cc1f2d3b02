"""A host as JSON: what ``coexist host --json`` prints and what a plan made elsewhere reads."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from toolkit.errors import ManyFaultsError, ToolkitError
from toolkit.files import publish
from toolkit.host.model import Host
from toolkit.names import did_you_mean
from toolkit.units import MIB

SCHEMA = 1
_HINT = "Record the host again: coexist host --record FILE."


def document(host: Host) -> dict[str, Any]:
    """The host as JSON values: ``schema``, ``context_mib``, then the fields of ``Host``; CPU lists are the kernel's."""
    fields = host.model_dump(mode="json", exclude={"schema_version", "context_bytes"})
    context_mib = None if host.context_bytes is None else -(-host.context_bytes // MIB)
    return {"schema": SCHEMA, "context_mib": context_mib, **fields}


def save(host: Host, path: Path) -> None:
    """Writes the record, whole or not at all.

    Raises: ToolkitError when the folder can't be written.
    """
    text = json.dumps(document(host.model_copy(update={"recorded": True})), indent=1) + "\n"
    try:
        publish(path, text.encode(), 0o644)
    except OSError as error:
        raise ToolkitError(f"The host can't be recorded: {error.strerror}.", str(path), code="record") from error


def load(path: Path) -> Host:
    """The recorded host, with ``recorded`` set: nothing of the machine at hand may be consulted.

    Raises: ToolkitError when it is no record; every fault of it is told.
    """
    try:
        found = json.loads(path.read_text())
    except OSError as error:
        raise ToolkitError(f"The host record can't be read: {error.strerror}.", str(path), code="record") from error
    except json.JSONDecodeError as error:
        raise ToolkitError(f"This is no JSON: {error.msg}.", f"{path}:{error.lineno}", _HINT, code="record") from error
    except (UnicodeDecodeError, RecursionError) as error:
        raise ToolkitError("This is no JSON.", str(path), _HINT, code="record") from error
    return read(found, str(path))


def read(found: object, where: str) -> Host:
    """The host of a document such as ``document`` makes; ``where`` names it in messages.

    Raises: ToolkitError when it is none.
    """
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        said = found.get("schema", "no") if isinstance(found, dict) else "no"
        raise ToolkitError(f"This is no host record: it says schema {said}, not {SCHEMA}.", where, _HINT, code="record")
    try:
        host = Host.model_validate_json(json.dumps(_fields(found, where)))
    except ValidationError as error:
        raise ManyFaultsError(tuple(_fault(one, where) for one in error.errors())) from error
    twice = [ToolkitError(what, f"{where} {key}", _HINT, code="record") for key, what in _said_twice(host)]
    if twice:
        raise ManyFaultsError(tuple(twice))
    return host


def _said_twice(host: Host) -> Iterator[tuple[str, str]]:
    """Key and sentence of each thing that can be there once only: a plan would give it away twice."""
    uuids = [*(gpu.uuid for gpu in host.gpus), *(part.uuid for gpu in host.gpus for part in gpu.mig or ())]
    yield from _repeated("gpus", "GPU index", (gpu.index for gpu in host.gpus))
    yield from _repeated("gpus", "UUID", map(str.lower, uuids))
    yield from _repeated("cores", "the core of CPU", (cpu for core in host.cores for cpu in core.cpus))
    yield from _repeated("numa", "NUMA node", (node.node for node in host.numa))
    yield from _repeated("numa", "the node of CPU", (cpu for node in host.numa for cpu in node.cpus))


def _repeated(key: str, noun: str, values: Iterable[int | str]) -> Iterator[tuple[str, str]]:
    seen: set[int | str] = set()
    for value in values:
        if value in seen:
            yield key, f"{noun} {value} is recorded twice."
        seen.add(value)


def _fields(found: Mapping[str, Any], where: str) -> dict[str, Any]:
    fields = {key: value for key, value in found.items() if key not in ("schema", "context_mib")}
    context_mib = found.get("context_mib")
    if context_mib is not None and (type(context_mib) is not int or context_mib < 0):
        raise ToolkitError("context_mib is a number of MiB, or null.", f"{where} context_mib", code="record")
    return {**fields, "context_bytes": None if context_mib is None else context_mib * MIB, "recorded": True}


def _fault(error: Mapping[str, Any], where: str) -> ToolkitError:
    key = ".".join(str(part) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        name = str(error["loc"][-1])
        hint = did_you_mean(name, (*Host.model_fields, "schema", "context_mib")) or _HINT
        return ToolkitError(f"A host has no field '{name}'.", f"{where} {key}", hint, code="record")
    return ToolkitError(f"{error['msg']}.", f"{where} {key}", _HINT, code="record")
