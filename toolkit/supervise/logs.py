"""Log files of instances: opened for appending by the child, read and rotated by the supervisor."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MAX_BYTES = 32 * 1024**2
TAIL_BYTES = 64 * 1024
_PIECE_BYTES = 256 * 1024


def open_append(path: Path) -> int:
    """A file descriptor for a child's output; a file never makes the child wait, a pipe can."""
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)


def size_bytes(path: Path) -> int:
    """Size of the log; 0 when there is none."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def is_long(path: Path) -> bool:
    """True when the log is to be rotated."""
    return size_bytes(path) > MAX_BYTES


def rotate(path: Path) -> None:
    """The log's text is in ``NAME.log.1``, and it begins anew.

    The file is copied and cut, since the child keeps it open; lines written between the two are lost.
    """
    shutil.copyfile(path, path.with_name(path.name + ".1"))
    os.truncate(path, 0)


@dataclass(frozen=True)
class LogView:
    """The part of a log that belongs to one attempt: from ``start_bytes`` on, or all after a rotation."""

    path: Path
    start_bytes: int

    def pieces(self) -> Iterator[bytes]:
        """The attempt's output from its beginning; nothing where it cannot be read."""
        start = self.start_bytes if size_bytes(self.path) >= self.start_bytes else 0
        with contextlib.suppress(OSError), self.path.open("rb") as file:
            file.seek(start)
            while piece := file.read(_PIECE_BYTES):
                yield piece

    def tail(self, limit_bytes: int = TAIL_BYTES) -> str:
        """The last ``limit_bytes`` of the attempt's output, as text."""
        size = size_bytes(self.path)
        start = self.start_bytes if size >= self.start_bytes else 0
        try:
            with self.path.open("rb") as file:
                file.seek(max(start, size - limit_bytes))
                return file.read(limit_bytes).decode(errors="replace")
        except OSError:
            return ""


def last_line(text: str) -> str | None:
    """The last line that says something; None when there is none."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), None)
