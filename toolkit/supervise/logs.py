"""Log files of instances: opened for appending by the child, read and rotated by the supervisor."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import heapq
import itertools
import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from toolkit.supervise import log_times
from toolkit.supervise.log_times import Times

MAX_BYTES = 32 * 1024**2
_FLOOD = 4  # times MAX_BYTES: of one that is longer the copies would take ever longer
TAIL_BYTES = 64 * 1024
PIECE_BYTES = 256 * 1024
_KEPT_BYTES = 64 * 1024
_NOT_A_RANKS = (".log.1", ".rotated", ".tmp")
_LOCK_TRIES, _LOCK_PAUSE_S = 50, 0.02
# include/uapi/linux/falloc.h
_KEEP_SIZE, _PUNCH_HOLE, _COLLAPSE_RANGE = 0x01, 0x02, 0x08
_libc = ctypes.CDLL(None, use_errno=True)


def open_append(path: Path) -> int:
    """A file descriptor for a child's output; a file never makes the child wait, a pipe can."""
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)


def size_bytes(path: Path) -> int:
    """Size of the log; 0 when there is none."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def signature(path: Path) -> tuple[int, int]:
    """Size and time of the last change, which together change with every write."""
    try:
        status = path.stat()
    except OSError:
        return 0, 0
    return status.st_size, status.st_mtime_ns


def disk_bytes(path: Path) -> int:
    """What the log takes of the disk; 0 when there is none."""
    try:
        return min(path.stat().st_size, path.stat().st_blocks * 512)
    except OSError:
        return 0


def is_long(path: Path) -> bool:
    """True when the log is to be rotated."""
    return disk_bytes(path) > MAX_BYTES


def previous(path: Path) -> Path:
    """Where the rotated part of a log is; a name that no launcher gives to a rank's file."""
    return path.with_name(path.name + (".1" if path.suffix == ".log" else ".rotated"))


def rotate(path: Path) -> None:
    """The log's text is in ``NAME.log.1``, and it begins anew, while the child keeps it open for appending.

    Where the file system can take bytes from a file's front (ext4, xfs), nothing is lost. Elsewhere the file is copied
    until nothing new comes and then cut, and what is written between these two system calls is lost. Of a log that
    grew by more than ``MAX_BYTES`` since it was looked at, or grows faster than it is copied, that much is kept.

    Raises: OSError.
    """
    with path.open("r+b") as log:
        copied = _copy_front(log.fileno(), previous(path))
        with _alone(log.fileno()):
            if not (copied and _fallocate(log.fileno(), _COLLAPSE_RANGE, copied)):
                copied = _catch_up(log.fileno(), previous(path), copied)
                os.ftruncate(log.fileno(), 0)
            log_times.drop(path, copied, log_times.dropped_bytes(path))


def punch(path: Path) -> None:
    """As ``rotate`` for a file that somebody else may have opened without appending: its front becomes a hole.

    Offsets stay, the disk's space comes back. Raises: OSError.
    """
    with path.open("r+b") as log:
        hole = _hole_bytes(log.fileno())
        copied = _copy_front(log.fileno(), previous(path), hole)
        if copied > hole and not _fallocate(log.fileno(), _PUNCH_HOLE | _KEEP_SIZE, copied):
            os.ftruncate(log.fileno(), 0)  # who does not append writes on behind a hole, too


def _copy_front(log: int, target: Path, start: int = 0) -> int:
    """Where the copy of the log's whole blocks ends; there is something left behind it."""
    status = os.fstat(log)
    end = max(start, (status.st_size - 1) // status.st_blksize * status.st_blksize)
    start = max(start, end - _FLOOD * MAX_BYTES)
    aside = target.with_name(target.name + ".tmp")
    out = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        _copy(log, out, start, end)
    finally:
        os.close(out)
    aside.replace(target)
    return end


def _copy(source: int, target: int, start: int, end: int) -> None:
    while start < end and (piece := os.pread(source, min(PIECE_BYTES, end - start), start)):
        start += os.write(target, piece)


def _catch_up(log: int, target: Path, position: int) -> int:
    """Copies on until nothing new comes, or too much; where that is."""
    limit = position + _FLOOD * MAX_BYTES
    with target.open("ab", buffering=0) as out:
        while position < limit and (piece := os.pread(log, PIECE_BYTES, position)):
            position += out.write(piece) or 0
    return position


def _fallocate(descriptor: int, mode: int, length: int) -> bool:
    """Whether the file system did so with the first ``length`` bytes."""
    return bool(_libc.fallocate(descriptor, mode, ctypes.c_int64(0), ctypes.c_int64(length)) == 0)


def _hole_bytes(descriptor: int) -> int:
    """How many bytes at the front were given back to the disk."""
    try:
        return os.lseek(descriptor, 0, os.SEEK_DATA)
    except OSError:  # nothing but a hole, or an empty file
        return os.fstat(descriptor).st_size


@contextlib.contextmanager
def _alone(descriptor: int) -> Iterator[None]:
    """While the block runs no reader of ours is between looking where the log begins and reading there.

    Raises: BlockingIOError when one of them stands still.
    """
    for left in reversed(range(_LOCK_TRIES)):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if not left:
                raise
            time.sleep(_LOCK_PAUSE_S)
    try:
        yield
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)


@dataclass(frozen=True)
class LogFile:
    """One log and its rotated part as one text. Offsets count from its first byte ever."""

    path: Path

    def end(self) -> int:
        """Where the next byte will be."""
        return log_times.dropped_bytes(self.path) + size_bytes(self.path)

    def read(self, offset: int, limit_bytes: int = PIECE_BYTES) -> tuple[bytes, int]:
        """What is at ``offset``, or at the first byte behind it that is kept, and the offset after it.

        Nothing where it ends or cannot be read; from its beginning when it was emptied since.
        """
        try:
            with self.path.open("rb") as file:
                fcntl.flock(file.fileno(), fcntl.LOCK_SH)
                dropped = log_times.dropped_bytes(self.path)
                first = dropped + _hole_bytes(file.fileno())
                if offset > dropped + os.fstat(file.fileno()).st_size:
                    offset = first
                if offset < first:
                    return self._read_previous(offset, first, limit_bytes)
                data = os.pread(file.fileno(), limit_bytes, offset - dropped)
                return data, offset + len(data)
        except OSError:
            return b"", offset

    def _read_previous(self, offset: int, first: int, limit_bytes: int) -> tuple[bytes, int]:
        """From the rotated part, which ends where the log now begins."""
        path = previous(self.path)
        begins = max(0, first - size_bytes(path))
        offset = max(offset, begins)
        with contextlib.suppress(OSError), path.open("rb") as file:
            file.seek(offset - begins)
            if data := file.read(min(limit_bytes, first - offset)):
                return data, offset + len(data)
        return b"", first

    def pieces(self, start: int) -> Iterator[bytes]:
        """All from ``start`` on; of a log that grows faster than it is read, what it has by now."""
        end = self.end()
        while True:
            data, after = self.read(start)
            if not data and after == start:
                return
            start = after
            if data:
                yield data
            if start >= end:
                return


@dataclass
class Cursor:
    """Where reading of one log stands; ``rest`` is the beginning of a line whose end is not written yet."""

    log: LogFile
    offset: int = 0
    rest: bytes = b""

    def lines(self) -> Iterator[tuple[bytes, int]]:
        """Lines that were finished since the last call, without their ends, each with the offset behind it.

        Of a log that grows faster than it is read, those that are finished by now.
        """
        until = self.log.end()
        while True:
            data, after = self.log.read(self.offset)
            if not data and after == self.offset:
                return
            if after - len(data) != self.offset:  # what was there is gone
                self.rest = b""
            end = after - len(data) - len(self.rest)
            self.offset, (*whole, self.rest) = after, (self.rest + data).split(b"\n")
            for text in whole:
                end += len(text) + 1
                yield text, end
            if self.offset >= until:
                return


@dataclass(frozen=True)
class Line:
    """One line of a log; ``at_s``: by when it was written (Unix seconds)."""

    text: bytes
    at_s: float


@dataclass(frozen=True)
class Stored:
    """A log whose lines can be put in time; ``file``: its name in the marks."""

    cursor: Cursor
    times: Times
    file: str = ""

    def lines(self) -> Iterator[Line]:
        """Finished lines from the cursor on."""
        changed_s, at_s = changed_at_s(self.cursor.log.path), 0.0
        for text, end in self.cursor.lines():
            at_s = max(at_s, self.times.written_by(end, self.file) or changed_s)
            yield Line(text, at_s)

    def last(self) -> Iterator[Line]:
        """What is left without an end of line."""
        if self.cursor.rest:
            yield Line(self.cursor.rest, changed_at_s(self.cursor.log.path))


def changed_at_s(path: Path) -> float:
    """When something was last written there (Unix seconds); 0 where there is nothing."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


@dataclass(frozen=True)
class LogView:
    """The part of a service's logs that belongs to one attempt: from ``start_bytes`` on, and its ranks' files.

    ``recent``: the last lines from memory, for when the log was removed.
    """

    path: Path
    start_bytes: int
    recent: Callable[[], bytes] = bytes

    def pieces(self) -> Iterator[bytes]:
        """The attempt's output from its beginning, the ranks' lines put in order of time."""
        ranks = rank_files(self.path)
        found = self._merged(ranks) if ranks else LogFile(self.path).pieces(self.start_bytes)
        empty = True
        for piece in found:
            empty = False
            yield piece
        if empty and (kept := self.recent()):
            yield kept

    def lines(self) -> Iterator[str]:
        """The attempt's output, line by line."""
        rest = b""
        for piece in self.pieces():
            *whole, rest = (rest + piece).split(b"\n")
            yield from (line.decode(errors="replace") for line in whole)
        yield rest.decode(errors="replace")

    def _merged(self, ranks: list[Path]) -> Iterator[bytes]:
        times, folder = log_times.read(self.path), rank_folder(self.path)
        sources = [Stored(Cursor(LogFile(self.path), self.start_bytes), times)]
        sources += [Stored(Cursor(LogFile(path)), times, str(path.relative_to(folder))) for path in ranks]
        # Within a second, who fell silent first comes first: the others only tell that they lost it.
        sources.sort(key=lambda source: changed_at_s(source.cursor.log.path))
        streams = [itertools.chain(source.lines(), source.last()) for source in sources]
        for line in heapq.merge(*streams, key=lambda line: line.at_s):
            yield line.text + b"\n"

    def written_bytes(self) -> int:
        """How much was written in all, rotated parts and ranks included: it only changes when somebody writes."""
        return LogFile(self.path).end() + sum(map(size_bytes, rank_files(self.path)))

    def tail(self, limit_bytes: int = TAIL_BYTES) -> str:
        """The last ``limit_bytes`` of what the process itself wrote, as text."""
        log = LogFile(self.path)
        start = max(self.start_bytes, log.end() - limit_bytes)
        text = b"".join(log.pieces(start)) or self.recent()
        return text[-limit_bytes:].decode(errors="replace")


@dataclass
class NewLines:
    """Lines of an attempt's log, its ranks' files included, each once."""

    log: LogView
    _cursors: dict[Path, Cursor] = field(default_factory=dict)

    def read(self) -> Iterator[str]:
        """Those that were finished since the last call."""
        for cursor in self._all():
            for text, _ in cursor.lines():
                yield text.decode(errors="replace")

    def skip(self) -> None:
        """What was written by now is not read."""
        for cursor in self._all():
            cursor.offset, cursor.rest = cursor.log.end(), b""

    @property
    def unfinished_bytes(self) -> int:
        """How much was read of lines that have no end yet."""
        return sum(len(cursor.rest) for cursor in self._cursors.values())

    def _all(self) -> list[Cursor]:
        self._cursors.setdefault(self.log.path, Cursor(LogFile(self.log.path), self.log.start_bytes))
        for path in rank_files(self.log.path):
            self._cursors.setdefault(path, Cursor(LogFile(path)))
        return list(self._cursors.values())


@dataclass
class LogSearch:
    """Whether something that an attempt's process wrote matches a pattern, however much it writes.

    Nothing is read twice. The last lines are kept, since what matches may be only half there.
    """

    log: LogView
    _offset: int = field(init=False)
    _kept: bytes = b""
    _found: bool = False

    def __post_init__(self) -> None:
        self._offset = self.log.start_bytes

    def __call__(self, pattern: str) -> bool:
        """``pattern`` is the same each time."""
        log = LogFile(self.log.path)
        until = log.end()
        if not until:  # somebody removed it
            self._found = self._found or _matches(pattern, self.log.recent())
        while not self._found:
            data, after = log.read(self._offset)
            if not data and after == self._offset:
                break
            text = self._kept + data
            # A line that is cut by the end of a piece has not ended.
            self._found = _matches(pattern, text if after >= until else text[: text.rfind(b"\n") + 1])
            self._offset, self._kept = after, _last_lines(text)
            if after >= until:
                break
        return self._found


def _matches(pattern: str, text: bytes) -> bool:
    return re.search(pattern, text.decode(errors="replace"), re.MULTILINE) is not None


def _last_lines(text: bytes) -> bytes:
    """The last whole lines of it that are no more than ``_KEPT_BYTES``, with what follows them."""
    cut = len(text) - _KEPT_BYTES
    return text if cut <= 0 else text[text.find(b"\n", cut) + 1 or cut :]


def rank_folder(log: Path) -> Path:
    """Where the ranks of a service write a file each, for launches that say so."""
    return log.with_suffix("")


def previous_ranks(log: Path) -> Path:
    """Where the files of the attempt before are kept; no service can have this name."""
    return log.with_name(f"{log.stem}@previous")


def rank_files(log: Path) -> list[Path]:
    """The files of the ranks."""
    return files_below(rank_folder(log))


def files_below(folder: Path) -> list[Path]:
    """Log files at any depth; rotated parts belong to theirs."""
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.endswith(_NOT_A_RANKS))


def last_line(text: str) -> str | None:
    """The last line that says something; None when there is none."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), None)
