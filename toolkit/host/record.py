"""A host as JSON: what ``coexist host --json`` prints and what a plan made elsewhere reads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from toolkit.errors import ManyFaultsError, ToolkitError
from toolkit.files import publish
from toolkit.host.model import Host
from toolkit.names import nearest
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
        return Host.model_validate_json(json.dumps(_fields(found, where)))
    except ValidationError as error:
        raise ManyFaultsError(tuple(_fault(one, where) for one in error.errors())) from error


def _fields(found: Mapping[str, Any], where: str) -> dict[str, Any]:
    fields = {key: value for key, value in found.items() if key not in ("schema", "context_mib")}
    context_mib = found.get("context_mib")
    if context_mib is not None and (isinstance(context_mib, bool) or not isinstance(context_mib, int)):
        raise ToolkitError("context_mib is a number of MiB, or null.", f"{where} context_mib", code="record")
    return {**fields, "context_bytes": None if context_mib is None else context_mib * MIB, "recorded": True}


def _fault(error: Mapping[str, Any], where: str) -> ToolkitError:
    key = ".".join(str(part) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        name = str(error["loc"][-1])
        near = nearest(name, (*Host.model_fields, "schema", "context_mib"))
        hint = f"Did you mean '{near}'?" if near else _HINT
        return ToolkitError(f"A host has no field '{name}'.", f"{where} {key}", hint, code="record")
    return ToolkitError(f"{error['msg']}.", f"{where} {key}", _HINT, code="record")
