"""What /proc says of processes. A process that ends while it is read is simply not there."""

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


@dataclass(frozen=True)
class Identity:
    """A process for as long as the machine runs: a pid alone is used again, its start time is not."""

    pid: int
    start_ticks: int


@dataclass(frozen=True)
class Stat:
    """One line of /proc/PID/stat; ``state`` Z is a zombie; a ``kernel`` thread is no program."""

    identity: Identity
    name: str
    state: str
    ppid: int
    session: int
    cpu_s: float
    resident_bytes: int
    kernel: bool = False


def stat(pid: int, proc: Path = PROC) -> Stat | None:
    """The process's stat, or None when it is gone."""
    try:
        text = (proc / str(pid) / "stat").read_text(errors="replace")
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
        (int(field[11]) + int(field[12])) / _TICKS_PER_S,
        int(field[21]) * _PAGE_BYTES,
        bool(int(field[6]) & _PF_KTHREAD),
    )


def pids(proc: Path = PROC) -> list[int]:
    """Every process id that can be seen."""
    return [int(entry.name) for entry in proc.iterdir() if entry.name.isdigit()]


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
        for task in (proc / str(pid) / "task").iterdir():
            found.extend(map(int, (task / "children").read_text().split()))
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
