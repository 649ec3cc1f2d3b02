"""Which process made something, in a form that still tells the truth after its pid has been given away."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
_DEAD_STATES = ("Z", "X")


@dataclass(frozen=True)
class ProcessId:
    """A process for good. ``start_time`` is in clock ticks since boot, ``pid_namespace`` the namespace's inode."""

    pid: int
    start_time: int
    boot_id: str
    pid_namespace: int


def boot_id(proc: Path = PROC) -> str:
    """The kernel's name for this boot."""
    return (proc / "sys/kernel/random/boot_id").read_text().strip()


def pid_namespace(proc: Path = PROC) -> int:
    """The inode of the pid namespace we count pids in."""
    return (proc / "self/ns/pid").stat().st_ino


def start_time(pid: int, proc: Path = PROC) -> int | None:
    """Clock ticks from boot to the start of the process; None: it is gone, or a zombie."""
    try:
        stat = (proc / str(pid) / "stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name in parentheses may itself hold spaces and parentheses: count from the last one (proc_pid_stat(5)).
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in _DEAD_STATES else int(fields[19])


def this_process(proc: Path = PROC) -> ProcessId:
    """The process that asks."""
    pid = os.getpid()
    return ProcessId(pid, start_time(pid, proc) or 0, boot_id(proc), pid_namespace(proc))


def is_alive(process: ProcessId, proc: Path = PROC) -> bool | None:
    """Whether that process still runs; None: it counts its pids in another namespace, so we cannot know."""
    if process.boot_id != boot_id(proc):
        return False
    if process.pid_namespace != pid_namespace(proc):
        return None
    return start_time(process.pid, proc) == process.start_time


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
