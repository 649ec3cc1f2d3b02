"""What a dead tree left behind that would make its successor fail: locks, half-written files, shared memory.

Files are looked for in the service's own cache folder only, and nothing goes that a living process holds.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from toolkit import processes

SHM = Path("/dev/shm")  # noqa: S108  where POSIX puts shared memory
HALF_WRITTEN = (".tmp", ".part", ".partial", ".incomplete")
FileId = tuple[int, int]  # device and inode
_MAX_LOCK_BYTES = 64  # of a lock file that names its holder


def boot_time_s() -> float:
    """When this boot began, on the clock that files are dated by."""
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass
class Leftovers:
    """Of one attempt. ``look`` while it lives, ``clean`` once nothing of it is left; both read /proc: for threads."""

    cache_dir: Path | None
    shm: Path = SHM
    proc: Path = processes.PROC
    boot_s: Callable[[], float] = boot_time_s
    _segments: dict[Path, FileId] = field(default_factory=dict)

    def look(self, pids: Iterable[int]) -> None:
        """Remembers which shared memory these processes use."""
        names = {name for pid in pids for name in _open_names(pid, self.proc)}
        for path in (Path(name) for name in names if name.startswith(f"{self.shm}/")):
            if known := _file_id(path):
                self._segments[path] = known

    def clean(self) -> tuple[str, ...]:
        """What was removed, each in words; empty when nothing was in the way."""
        used = frozenset(_in_use(self.proc))
        locks = [path for path in self._cached() if is_lock(path) and self._is_stale(path, used)]
        halves = [path for path in self._cached() if path.name.endswith(HALF_WRITTEN) and _file_id(path) not in used]
        shared = [path for path, known in self._segments.items() if _file_id(path) == known and known not in used]
        kinds = {"the stale lock": locks, "the half-written": halves, "the shared memory": shared}
        return tuple(f"{what} {path}" for what, paths in kinds.items() for path in paths if _removed(path))

    def _cached(self) -> Iterator[Path]:
        if self.cache_dir is not None:
            for folder, _, names in os.walk(self.cache_dir):  # links to folders are not followed
                yield from (Path(folder, name) for name in names)

    def _is_stale(self, path: Path, used: frozenset[FileId]) -> bool:
        """Nobody alive has it open or locked, or is named in it; what is older than this boot names nobody."""
        if _file_id(path) in used or processes.lock_holder(path, self.proc) is not None:
            return False
        try:
            before_boot = path.lstat().st_mtime < self.boot_s()
        except OSError:
            return False
        return before_boot or not self._names_living(path)

    def _names_living(self, path: Path) -> bool:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe would be waited for
        except OSError:
            return True  # what cannot be read is not judged
        with os.fdopen(descriptor, "rb") as file:
            words = (file.read(_MAX_LOCK_BYTES) or b"").split()
        named = (int(word) for word in words if word.isdigit())
        return any(processes.start_time(pid, self.proc) is not None for pid in named)


def is_lock(path: Path) -> bool:
    """Whether the name is one of those that compilers and caches give their locks."""
    return path.name == "lock" or path.name.endswith((".lock", "_lock"))


def _in_use(proc: Path) -> Iterator[FileId]:
    """Files that a living process has open or mapped, as far as we may see."""
    for pid in processes.pids(proc):
        yield from (found for path in _descriptors(pid, proc) if (found := _file_id(path, follow=True)))
        yield from (known for known, _ in _mapped(pid, proc))


def _descriptors(pid: int, proc: Path) -> list[Path]:
    try:
        return list((proc / str(pid) / "fd").iterdir())
    except OSError:
        return []


def _mapped(pid: int, proc: Path) -> Iterator[tuple[FileId, str]]:
    """Files that the process has mapped, with their names."""
    try:
        lines = (proc / str(pid) / "maps").read_text(errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        # "7f00-7f01 rw-s 00000000 00:1a 4242    /dev/shm/psm_1"; what is no file has inode 0
        fields = line.split(None, 5)
        if len(fields) == 6 and fields[4] != "0":
            major, _, minor = fields[3].partition(":")
            yield (os.makedev(int(major, 16), int(minor, 16)), int(fields[4])), fields[5]


def _open_names(pid: int, proc: Path) -> Iterator[str]:
    for path in _descriptors(pid, proc):
        with contextlib.suppress(OSError):
            yield str(path.readlink())
    yield from (name for _, name in _mapped(pid, proc))


def _file_id(path: Path, follow: bool = False) -> FileId | None:
    try:
        found = path.stat(follow_symlinks=follow)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _removed(path: Path) -> bool:
    try:
        path.unlink()
    except OSError:
        return False
    return True
