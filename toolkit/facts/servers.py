"""What releases of other server programs do, for the times when their files cannot be looked into."""

from __future__ import annotations

import functools
from typing import Any

from toolkit.facts.load import HERE, parse
from toolkit.facts.model import within


@functools.lru_cache(maxsize=1)
def rows() -> list[dict[str, Any]]:
    """Every row: program, fact, value, versions, status, source."""
    found: list[dict[str, Any]] = parse((HERE / "servers.yaml").read_bytes())["rows"]
    return found


def server_does(program: str, fact: str, version: str | None) -> bool | None:
    """Whether a release does it; None where no row says."""
    for row in rows():
        if (row["program"], row["fact"]) == (program, fact) and within(version, row["versions"]):
            return bool(row["value"])
    return None
