"""What server programs write when they compile, and what they say a part of their start took. Pure."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from toolkit.facts.load import HERE, parse
from toolkit.units import GIB


@dataclass(frozen=True)
class LoggedPart:
    """One part of a start as the program tells it; None: not told."""

    seconds: float | None = None
    gpu_bytes: int | None = None


@functools.lru_cache(maxsize=1)
def _rows() -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = parse((HERE / "program_logs.yaml").read_bytes())
    return found


@functools.lru_cache(maxsize=1)
def _compiling() -> re.Pattern[str]:
    return re.compile("|".join(f"(?:{row['pattern']})" for row in _rows()["compiles"]))


@functools.lru_cache(maxsize=1)
def _telling() -> tuple[tuple[str, re.Pattern[str]], ...]:
    return tuple((row["part"], re.compile(row["pattern"])) for row in _rows()["parts"])


def compiling(line: str) -> str | None:
    """The words of the line that say that something is compiled; None: it says nothing of it."""
    found = _compiling().search(line)
    return found[0] if found else None


def parts(lines: Iterable[str]) -> dict[str, LoggedPart]:
    """What the lines say of parts of a start, by part; of several ranks the largest counts."""
    found: dict[str, LoggedPart] = {}
    for line in lines:
        for name, pattern in _telling():
            if match := pattern.search(line):
                found[name] = _larger(found.get(name, LoggedPart()), match.groupdict())
    return found


def _larger(before: LoggedPart, told: dict[str, str | None]) -> LoggedPart:
    numbers = {name: float(text) for name, text in told.items() if text}
    seconds, gib = numbers.get("seconds"), numbers.get("gib")
    size = None if gib is None else round((gib + numbers.get("gib2", 0.0)) * GIB)
    return LoggedPart(_most(before.seconds, seconds), _most(before.gpu_bytes, size))


def _most(one: Any, other: Any) -> Any:
    known = [value for value in (one, other) if value is not None]
    return max(known) if known else None
