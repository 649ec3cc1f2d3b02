"""Which processes there are, as /proc tells it. A process that ends while it is read is simply not there."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PF_KTHREAD = 0x00200000  # include/linux/sched.h
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_STAT_BYTES = 4096
_DEAD_STATES = ("Z", "X")


@dataclass(frozen=True)
class Identity:
    """A process for as long as the machine runs: a pid alone is used again, its start time is not."""

    pid: int
    start_ticks: int


@dataclass(frozen=True)
class ProcessId:
    """A process for good. ``start_time`` is in clock ticks since boot, ``pid_namespace`` the namespace's inode."""

    pid: int
    start_time: int
    boot_id: str
    pid_namespace: int


@dataclass(frozen=True)
class Stat:
    """One line of /proc/PID/stat; ``state`` Z is a zombie; a ``kernel`` thread is no program.

    ``cpu_s``: of the process and of those children that it has reaped.
    """

    identity: Identity
    name: str
    state: str
    ppid: int
    session: int
    cpu_s: float
    resident_bytes: int
    kernel: bool = False

    @property
    def dead(self) -> bool:
        """Only its exit status is left of it."""
        return self.state in _DEAD_STATES


def stat(pid: int, proc: Path = PROC) -> Stat | None:
    """The process's stat, or None when it is gone."""
    try:
        text = _read(f"{proc}/{pid}/stat").decode(errors="replace")
    except OSError:
        return None
    name, _, rest = text.partition("(")[2].rpartition(")")  # a name may hold spaces and parentheses
    field = rest.split()
    return Stat(
        Identity(pid, int(field[19])),
        name,
        field[0],
        int(field[1]),
        int(field[3]),
        sum(map(int, field[11:15])) / _TICKS_PER_S,
        int(field[21]) * _PAGE_BYTES,
        bool(int(field[6]) & _PF_KTHREAD),
    )


def io_bytes(pid: int, proc: Path = PROC) -> tuple[int, int]:
    """What the process read and wrote, of whatever kind; and what of it its disks did, through its memory map too.

    Children that it has reaped are counted. Zeros where the kernel does not tell.
    """
    try:
        lines = _read(f"{proc}/{pid}/io").decode().splitlines()
    except OSError:
        return 0, 0
    counts = dict(line.split(": ", 1) for line in lines if ": " in line)

    def total(*names: str) -> int:
        return sum(int(counts.get(name, 0)) for name in names)

    return total("rchar", "wchar"), total("read_bytes", "write_bytes")


def _read(path: str) -> bytes:
    """A small file of /proc, in one piece; a supervisor reads thousands of them, and pathlib takes half of the time."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, _STAT_BYTES)
    finally:
        os.close(descriptor)


def pids(proc: Path = PROC) -> list[int]:
    """Every process id that can be seen."""
    return [int(name) for name in os.listdir(proc) if name.isdigit()]  # noqa: PTH208 (as above)


def stats(proc: Path = PROC) -> list[Stat]:
    """Every process that can be seen."""
    return [found for pid in pids(proc) if (found := stat(pid, proc))]


def has_cookie(pid: int, cookie: str, proc: Path = PROC) -> bool:
    """True when the process was started with this ``NAME=VALUE`` in its environment."""
    return cookie.encode() in (environment(pid, proc) or ())


def environment(pid: int, proc: Path = PROC) -> list[bytes] | None:
    """The variables that the process was started with; None: there are none, or not yet in the middle of an exec."""
    try:
        text = (proc / str(pid) / "environ").read_bytes()
    except OSError:
        return []
    return text.split(b"\0") if text else None


def children(pid: int, proc: Path = PROC) -> list[int]:
    """Direct children; empty when the process is gone."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in os.listdir(f"{proc}/{pid}/task"):  # noqa: PTH208
            found.extend(map(int, (proc / str(pid) / "task" / task / "children").read_bytes().split()))
    return found


def descendants(pid: int, proc: Path = PROC) -> Iterator[int]:
    """The process and all below it, parents first."""
    yield pid
    for child in children(pid, proc):
        yield from descendants(child, proc)


def closure(roots: Iterable[int], found: Iterable[Stat]) -> set[int]:
    """Roots and everything below them."""
    below: dict[int, list[int]] = {}
    for each in found:
        below.setdefault(each.ppid, []).append(each.identity.pid)
    seen: set[int] = set()
    todo = list(roots)
    while todo:
        pid = todo.pop()
        if pid not in seen:
            seen.add(pid)
            todo.extend(below.get(pid, ()))
    return seen


def tree(pids: Iterable[int], proc: Path = PROC) -> tuple[int, ...]:
    """These processes and all their descendants that are still theirs by parent, sorted."""
    return tuple(sorted(closure(pids, stats(proc))))


def boot_id(proc: Path = PROC) -> str:
    """The kernel's name for this boot."""
    return (proc / "sys/kernel/random/boot_id").read_text().strip()


def pid_namespace(proc: Path = PROC) -> int:
    """The inode of the pid namespace we count pids in."""
    return (proc / "self/ns/pid").stat().st_ino


def start_time(pid: int, proc: Path = PROC) -> int | None:
    """Clock ticks from boot to the start of the process; None: it is gone, or a zombie."""
    found = stat(pid, proc)
    return None if found is None or found.dead else found.identity.start_ticks


def this_process(proc: Path = PROC) -> ProcessId:
    """The process that asks."""
    pid = os.getpid()
    return ProcessId(pid, start_time(pid, proc) or 0, boot_id(proc), pid_namespace(proc))


def is_alive(process: ProcessId, proc: Path = PROC) -> bool | None:
    """Whether that process still runs; None: we cannot know (another pid namespace, or /proc hides other users)."""
    if process.boot_id != boot_id(proc):
        return False
    if process.pid_namespace != pid_namespace(proc) or _is_hidden(process.pid, proc):
        return None
    return start_time(process.pid, proc) == process.start_time


def _is_hidden(pid: int, proc: Path) -> bool:
    """Whether the process is there although /proc does not show it (mounted with ``hidepid``)."""
    if stat(pid, proc) is not None:
        return False
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except OSError:
        return False
    return False  # ours, and it ended between the two looks


def lock_holder(path: Path, proc: Path = PROC) -> int | None:
    """The pid that holds an exclusive ``flock`` on the file; None: nobody, or not known here."""
    try:
        status = path.stat()
        locks = (proc / "locks").read_text()
    except OSError:
        return None
    inode = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    for line in locks.splitlines():
        # "1: FLOCK  ADVISORY  WRITE 1234 fe:00:5678 0 EOF"; a waiter's line has "->" and no lock.
        fields = line.split()
        if fields[1:2] == ["FLOCK"] and fields[3:4] == ["WRITE"] and fields[5] == inode and int(fields[4]) > 0:
            return int(fields[4])
    return None
