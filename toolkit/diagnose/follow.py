"""The diagnosis of a log that is still being written."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from toolkit.diagnose.classify import Reading
from toolkit.diagnose.model import Context, Diagnosis

POLL_S = 1.0
CHUNK_BYTES = 1 << 18


def read_pieces(path: Path, start_bytes: int = 0) -> Iterator[bytes]:
    """The file in pieces, from ``start_bytes`` on. Raises OSError."""
    with path.open("rb") as file:
        file.seek(start_bytes)
        while piece := file.read(CHUNK_BYTES):
            yield piece


def count_lines(path: Path, end_bytes: int) -> int:
    """How many lines end before ``end_bytes``. Raises OSError."""
    found = 0
    with path.open("rb") as file:
        while end_bytes > 0 and (piece := file.read(min(CHUNK_BYTES, end_bytes))):
            found += piece.count(b"\n")
            end_bytes -= len(piece)
    return found


class _Growing:
    """The pieces of a file that grows: what there is, then a pause, until it is ``over``."""

    def __init__(self, path: Path, start_bytes: int) -> None:
        self.path = path
        self.read_bytes = start_bytes
        self.over = False

    def __iter__(self) -> Iterator[bytes | None]:
        while True:
            last = self.over
            for piece in read_pieces(self.path, self.read_bytes):
                self.read_bytes += len(piece)
                yield piece
            if last:
                return
            yield None

    def was_cut(self) -> bool:
        """The file is shorter than what was read of it: it was rotated."""
        return self.path.stat().st_size < self.read_bytes


def follow(
    path: Path,
    context: Context | None = None,
    goes_on: Callable[[], bool] = lambda: True,
    sleep: Callable[[float], None] = time.sleep,
    start_bytes: int = 0,
) -> Iterator[Diagnosis]:
    """The diagnosis now, and each time that it changes as the log grows, until ``goes_on`` says no.

    Each byte is read once; a log that was rotated is begun anew. Raises OSError.
    """
    told: Diagnosis | None = None
    growing = _Growing(path, start_bytes)
    reading = Reading(growing, context, lines_before=count_lines(path, start_bytes))
    while True:
        growing.over = not goes_on()
        if growing.was_cut():
            growing, over = _Growing(path, 0), growing.over
            growing.over, reading = over, Reading(growing, context)
        found = reading.told()
        if found != told:
            told = found
            yield found
        if growing.over:
            return
        sleep(POLL_S)
