"""When a log's bytes were written: marks in a file beside it (``NAME.log.times``), made by the supervisor.

The program writes its lines straight to its log, so that nothing can hold it up; nobody stamps them on the way. Once a
second the supervisor notes how long each log is by now. A stored line was written by the first mark behind it: to the
second, which is enough to put the lines of several services in order.

The first line is ``["dropped", N]``: bytes taken from the log's front by rotation, in all. Offsets count from the log's
first byte ever, whatever was dropped since. Then ``["run", at_s, offset]`` where a run of the deployment began, and
``["mark", at_s, offset, file]``, where ``file`` is empty for the log itself, else a rank's file in the folder beside.
"""

from __future__ import annotations

import contextlib
import json
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toolkit.files import publish

MAX_BYTES = 1024**2  # beyond it every second mark goes: the order of old lines gets coarser, the file stays small


@dataclass(frozen=True)
class Times:
    """What the marks of one service say. ``marks``: by file, offsets and when they were reached, ascending."""

    dropped: int = 0
    run_start: int = 0
    marks: Mapping[str, tuple[tuple[int, float], ...]] = field(default_factory=dict)

    def written_by(self, offset: int, file: str = "") -> float | None:
        """By when everything before ``offset`` was written (Unix seconds); None: no mark is behind it yet."""
        found = self.marks.get(file, ())
        index = bisect_left(found, (offset, 0.0))
        return found[index][1] if index < len(found) else None


def path_of(log: Path) -> Path:
    """Where the marks of a log are."""
    return log.with_name(log.name + ".times")


def read(log: Path) -> Times:
    """What the marks beside the log say; nothing where there are none. Torn lines are passed over."""
    dropped = run_start = 0
    marks: dict[str, list[tuple[int, float]]] = {}
    for line in _lines(log):
        if line[0] == "dropped":
            dropped = line[1]
        elif line[0] == "run":
            run_start = line[2]
        else:
            marks.setdefault(line[3], []).append((line[2], line[1]))
    return Times(dropped, run_start, {file: tuple(sorted(found)) for file, found in marks.items()})


def dropped_bytes(log: Path) -> int:
    """The first line's number alone."""
    try:
        with path_of(log).open("rb") as file:
            return int(_parsed(file.readline())[1])
    except (OSError, IndexError):
        return 0


def add(log: Path, *lines: list[Any]) -> None:
    """Appends lines. Raises: OSError."""
    path = path_of(log)
    if not path.exists():
        _rewrite(log, [["dropped", 0]])
    with path.open("ab") as file:
        file.write(b"".join(_text(line) for line in lines))
        size = file.tell()
    if size > MAX_BYTES:
        _rewrite(log, _thinned(_lines(log)))


def drop(log: Path, count: int, kept_from: int) -> None:
    """Notes that ``count`` bytes more left the front; marks before ``kept_from`` speak of nothing any more."""
    kept = [line for line in _lines(log) if line[0] == "run" or (line[0] == "mark" and _is_kept(line, kept_from))]
    _rewrite(log, [["dropped", dropped_bytes(log) + count], *kept])


def forget_ranks(log: Path) -> None:
    """Removes the marks of rank files: they begin anew."""
    if path_of(log).exists():
        _rewrite(log, [line for line in _lines(log) if line[0] != "mark" or not line[3]])


def _is_kept(line: list[Any], kept_from: int) -> bool:
    return bool(line[3]) or line[2] >= kept_from


def _thinned(lines: Iterable[list[Any]]) -> list[list[Any]]:
    return [line for number, line in enumerate(lines) if line[0] != "mark" or number % 2]


def _rewrite(log: Path, lines: Iterable[list[Any]]) -> None:
    publish(path_of(log), b"".join(_text(line) for line in lines), durable=False)


def _text(line: list[Any]) -> bytes:
    return json.dumps(line, separators=(",", ":")).encode() + b"\n"


def _lines(log: Path) -> list[list[Any]]:
    try:
        text = path_of(log).read_bytes()
    except OSError:
        return []
    return [line for line in map(_parsed, text.splitlines()) if line]


_FORMS = {"dropped": (int,), "run": (float, int), "mark": (float, int, str)}


def _parsed(text: bytes) -> list[Any]:
    """A line of one of the three forms; else nothing."""
    with contextlib.suppress(ValueError, TypeError, KeyError):
        kind, *facts = json.loads(text)
        if [type(fact) for fact in facts] == list(_FORMS[kind]):
            return [kind, *facts]
    return []
