"""What services wrote, line by line, also as it is written."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

POLL_S = 0.1
_CHUNK_BYTES = 1024**2


@dataclass(frozen=True)
class Entry:
    """One line of one service."""

    service: str
    text: str


@dataclass
class _Reader:
    """Where reading of one log stands; ``rest`` is the beginning of a line whose end is not written yet."""

    service: str
    path: Path
    offset: int = 0
    rest: bytes = field(default=b"")

    def lines(self) -> Iterator[Entry]:
        """Lines that were finished since the last call."""
        while chunk := self._chunk():
            *whole, self.rest = (self.rest + chunk).split(b"\n")
            yield from (Entry(self.service, line.decode(errors="replace").rstrip("\r")) for line in whole)

    def last(self) -> Iterator[Entry]:
        """What is left without an end of line."""
        if self.rest:
            yield Entry(self.service, self.rest.decode(errors="replace"))

    def _chunk(self) -> bytes:
        try:
            with self.path.open("rb") as file:
                if self.path.stat().st_size < self.offset:  # rotated: it begins anew
                    self.offset, self.rest = 0, b""
                file.seek(self.offset)
                chunk = file.read(_CHUNK_BYTES)
        except OSError:
            return b""
        self.offset += len(chunk)
        return chunk


def read(paths: Mapping[str, Path]) -> Iterator[Entry]:
    """All lines there are, one service after another."""
    for service, path in paths.items():
        reader = _Reader(service, path)
        yield from reader.lines()
        yield from reader.last()


def follow(
    paths: Mapping[str, Path], running: Callable[[], bool], sleep: Callable[[float], None] = time.sleep
) -> Iterator[Entry]:
    """All lines, then those that come, as they come, until nothing runs any more."""
    readers = [_Reader(service, path) for service, path in paths.items()]
    while True:
        was_running = running()
        entries = [entry for reader in readers for entry in reader.lines()]
        yield from entries
        if not was_running and not entries:
            break
        if not entries:
            sleep(POLL_S)
    for reader in readers:
        yield from reader.last()
