"""Control groups of version 2, one for each attempt, where we may make some: no process leaves one by itself."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from toolkit import processes
from toolkit.host import cgroup

PREFIX = "coexist-"
SYSFS = Path("/sys")
_KILL, _MEMBERS = "cgroup.kill", "cgroup.procs"


@dataclass(frozen=True)
class Group:
    """The control group of one attempt, and those that its processes made below it."""

    folder: Path

    def entrance(self) -> int:
        """A file descriptor that a process enters by, writing ``0``. Raises: OSError."""
        return os.open(self.folder / _MEMBERS, os.O_WRONLY | os.O_CLOEXEC)

    def members(self) -> frozenset[int]:
        """Process ids in the group and below it."""
        return frozenset(pid for folder in self._folders() for pid in _pids(folder / _MEMBERS))

    def kill(self) -> bool:
        """True when the kernel was told to kill all that is in the group and below it."""
        try:
            (self.folder / _KILL).write_text("1")
        except OSError:
            return False
        return True

    def remove(self) -> bool:
        """True when the group is gone; one in which something lives stays."""
        for folder in self._folders():
            with contextlib.suppress(OSError):
                folder.rmdir()
        return not self.folder.exists()

    def _folders(self) -> list[Path]:
        """Innermost first."""
        return [Path(folder) for folder, _, _ in os.walk(self.folder, topdown=False)]


@dataclass(frozen=True)
class Groups:
    """The group of a deployment, in which each attempt has its own."""

    folder: Path

    @classmethod
    def find(cls, cookie: str, sysfs: Path = SYSFS, proc: Path = processes.PROC) -> Groups | None:
        """A group below our own, made now; None where we may not make one, or the kernel cannot kill one whole."""
        own = cgroup.unified_folder(sysfs, proc, os.getpid())
        if own is None or not os.access(own / _MEMBERS, os.W_OK):
            return None
        found = cls(own / f"{PREFIX}{cookie}")
        return found if found._made() else None

    @classmethod
    def left(cls, folder: str | None, cookie: str) -> Groups | None:
        """The group that a supervisor with this cookie left behind; None: there is none of that name."""
        found = Path(folder) if folder else None
        return cls(found) if found and found.name == f"{PREFIX}{cookie}" and found.is_dir() else None

    def _made(self) -> bool:
        if _make(self.folder) and (self.folder / _KILL).exists():
            with contextlib.suppress(OSError):  # it needs memory to be ours to hand on, which it seldom is
                (self.folder / "cgroup.subtree_control").write_text("+memory")
            return True
        self.close()
        return False

    def make(self, attempt: str) -> Group | None:
        """The group of an attempt (``SERVICE.NUMBER``), made now; None when that fails."""
        group = self.of(attempt)
        return group if _make(group.folder) else None

    def of(self, attempt: str) -> Group:
        """The group of an attempt, whether it is there or not."""
        return Group(self.folder / attempt)

    def kill(self, spared: Iterable[str] = ()) -> None:
        """Kills and removes the groups of all attempts but these."""
        kept = set(spared)
        for name in _names(self.folder):
            if name not in kept:
                self.of(name).kill()
                self.of(name).remove()

    def close(self) -> None:
        """Removes every group in which nothing lives."""
        Group(self.folder).remove()


def _make(folder: Path) -> bool:
    try:
        folder.mkdir(exist_ok=True)
    except OSError:
        return False
    return True


def _names(folder: Path) -> list[str]:
    try:
        return [entry.name for entry in folder.iterdir() if entry.is_dir()]
    except OSError:
        return []


def _pids(file: Path) -> list[int]:
    try:
        return [int(word) for word in file.read_text().split()]
    except (OSError, ValueError):
        return []
