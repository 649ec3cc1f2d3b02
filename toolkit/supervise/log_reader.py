"""What services wrote, line by line, put in order of time, also as it is written.

Stored lines are in order to the second, by the marks of ``log_times``. Lines that come while somebody follows are told
as they come.
"""

from __future__ import annotations

import heapq
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from itertools import chain
from pathlib import Path

from toolkit.supervise import log_times, logs
from toolkit.supervise.log_times import Times
from toolkit.supervise.logs import Cursor, Line, LogFile, Stored

POLL_S = 0.1
_RANK = re.compile(r"rank[._-]?(\d+)|(?:^|/)(\d+)/(?:stdout|stderr)", re.IGNORECASE)


@dataclass(frozen=True)
class Entry:
    """One line of one service. ``rank``: whose file it is from; ``at_s``: by when it was written (Unix seconds)."""

    service: str
    text: str
    rank: str | None = None
    at_s: float = field(default=0.0, compare=False)

    @property
    def at(self) -> str:
        """The date in UTC, to the millisecond."""
        date = datetime.fromtimestamp(self.at_s, timezone.utc)
        return date.isoformat(timespec="milliseconds").replace("+00:00", "Z")


@dataclass(frozen=True)
class _Source:
    """One file of one service; ``inode`` tells it from one that comes to its place later."""

    service: str
    rank: str | None
    stored: Stored
    inode: int = 0

    @property
    def place(self) -> Path:
        return self.stored.cursor.log.path

    def entry(self, line: Line) -> Entry:
        return Entry(self.service, line.text.decode(errors="replace").rstrip("\r"), self.rank, line.at_s)

    def entries(self) -> Iterator[Entry]:
        return map(self.entry, self.stored.lines())

    def last(self) -> Iterator[Entry]:
        return map(self.entry, self.stored.last())


def rank_of(file: str) -> str:
    """The number of the rank whose file has this name in the folder, or the name where it tells none."""
    found = _RANK.search(file)
    return (found[1] or found[2]) if found else file


def _sources(paths: Mapping[str, Path], all_runs: bool) -> Iterator[_Source]:
    for service, path in paths.items():
        times = log_times.read(path)
        yield _Source(service, None, Stored(Cursor(LogFile(path), 0 if all_runs else times.run_start), times))
        if all_runs:
            yield from _rank_sources(service, logs.previous_ranks(path), Times())
        yield from _rank_sources(service, logs.rank_folder(path), times)


def _rank_sources(service: str, folder: Path, times: Times) -> Iterator[_Source]:
    for path in logs.files_below(folder):
        file = str(path.relative_to(folder))
        yield _Source(service, rank_of(file), Stored(Cursor(LogFile(path)), times, file), _inode(path))


def _inode(path: Path) -> int:
    try:
        return path.stat().st_ino
    except OSError:
        return 0


def read(paths: Mapping[str, Path], all_runs: bool = False, newest: int | None = None) -> Iterator[Entry]:
    """All lines of this run of the deployment (``all_runs``: also of those before), the oldest first.

    ``newest``: only so many, those written last.
    """
    sources = list(_sources(paths, all_runs))
    yield from _newest(chain(_merged(sources), *(source.last() for source in sources)), newest)


def _newest(entries: Iterator[Entry], count: int | None) -> Iterable[Entry]:
    return entries if count is None else deque(entries, count)


def _merged(sources: list[_Source]) -> Iterator[Entry]:
    return heapq.merge(*(source.entries() for source in sources), key=lambda entry: entry.at_s)


def follow(
    paths: Mapping[str, Path],
    running: Callable[[], bool],
    sleep: Callable[[float], None] = time.sleep,
    *,
    all_runs: bool = False,
    newest: int | None = None,
    now_s: Callable[[], float] = time.time,
) -> Iterator[Entry]:
    """All lines (or the ``newest``), then those that come, as they come, until nothing runs any more."""
    sources = list(_sources(paths, all_runs))
    yield from _newest(_merged(sources), newest)
    while True:
        was_running = running()
        sources = _renewed(paths, sources)
        came = [source.entry(Line(text, now_s())) for source in sources for text, _ in source.stored.cursor.lines()]
        yield from came
        if not was_running and not came:
            break
        if not came:
            sleep(POLL_S)
    for source in sources:
        yield from source.last()


def _renewed(paths: Mapping[str, Path], known: list[_Source]) -> list[_Source]:
    """With the files that a new attempt's ranks began, in place of those of the same name."""
    found = {source.place: source for source in known}
    for service, path in paths.items():
        for source in _rank_sources(service, logs.rank_folder(path), Times()):
            before = found.get(source.place)
            if before is None or before.inode != source.inode:
                found[source.place] = source
    return list(found.values())
