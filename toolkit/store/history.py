"""How long each engine took to build, and how big it became: what a progress line says of last time."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock

from toolkit.files import json_object, write_atomic

_SCHEMA = 1


@dataclass(frozen=True)
class Past:
    """The last build of an engine name."""

    seconds: float
    size_bytes: int


def last(path: Path, name: str) -> Past | None:
    """The last build of that name; None when none is remembered."""
    row = _builds(path).get(name)
    try:
        return Past(float(row["seconds"]), int(row["size_bytes"])) if isinstance(row, dict) else None
    except (KeyError, TypeError, ValueError):
        return None


def remember(path: Path, name: str, past: Past) -> None:
    """The history now holds this build as the last of its name."""
    with FileLock(path.with_name(path.name + ".lock")):
        builds = {**_builds(path), name: asdict(past)}
        write_atomic(path, json.dumps({"schema": _SCHEMA, "builds": builds}, indent=1), mode=0o644)


def _builds(path: Path) -> dict[str, Any]:
    """What is remembered; a damaged history remembers nothing, for it only feeds progress lines."""
    document = json_object(path) or {}
    builds = document.get("builds") if document.get("schema") == _SCHEMA else None
    return builds if isinstance(builds, dict) else {}
