"""Outlives the supervisor: when its standard input closes without ``done``, it kills all that carries the cookie,
but for the attempts that the last line there (``spare SERVICE.NUMBER …``) names.

Standard library only; started as ``python -I -S guardian.py NAME=PREFIX [GROUP]``. It carries no cookie itself. What
is in a control group below GROUP is killed too, and what descends from a carrier though its environment was cleaned.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Collection

LIMIT_S = 60.0
QUIET_ROUNDS = 5
PROC = "/proc"


def carriers(prefix: bytes, proc: str = PROC, spared: Collection[str] = ()) -> list[int]:
    """Processes, other than this one, whose environment has a variable that starts with ``prefix``.

    ``spared``: how variables go on after the prefix whose carriers are left out.
    """
    kept = {prefix + name.encode() for name in spared}
    return [pid for pid in _pids(proc) if _carries(pid, prefix, kept, proc)]


def _pids(proc: str) -> list[int]:
    names = (name for name in os.listdir(proc) if name.isdigit())  # noqa: PTH208
    return [int(name) for name in names if int(name) != os.getpid()]


def _carries(pid: int, prefix: bytes, kept: Collection[bytes], proc: str) -> bool:
    variables = _read(f"{proc}/{pid}/environ").split(b"\0")
    return any(each.startswith(prefix) and each not in kept for each in variables)


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            return file.read()
    except OSError:
        return b""


def _stat(pid: int, proc: str = PROC) -> tuple[int, int] | None:
    """Parent and start time (a pid is used again, the two together are not); None: it is gone, or a zombie."""
    fields = _read(f"{proc}/{pid}/stat").rpartition(b")")[2].split()
    return (int(fields[1]), int(fields[19])) if fields and fields[0] not in (b"Z", b"X") else None


def family(prefix: bytes, proc: str = PROC, spared: Collection[str] = ()) -> dict[int, int]:
    """Start times of the carriers and of all that descends from them, by pid."""
    found = {pid: stat for pid in _pids(proc) if (stat := _stat(pid, proc))}
    ours, new = set[int](), set(carriers(prefix, proc, spared))
    while new:
        ours |= new
        new = {pid for pid, (parent, _) in found.items() if parent in ours} - ours
    return {pid: found[pid][1] for pid in ours & found.keys()}


def kill_all(prefix: bytes, spared: Collection[str] = (), group: str | None = None) -> None:
    """Returns when nothing was seen for a few rounds, or after a minute.

    ``spared``: attempts (``SERVICE.NUMBER``) that may live, by cookie and by the name of their group in ``group``.
    """
    deadline, quiet = time.monotonic() + LIMIT_S, 0
    while quiet < QUIET_ROUNDS and time.monotonic() < deadline:
        grouped = _kill_groups(group, spared) if group else False
        found = family(prefix, spared=spared)
        quiet = 0 if found or grouped else quiet + 1
        for pid, started in found.items():
            _kill(pid, started)
        time.sleep(0.02)


def _kill(pid: int, started: int) -> None:
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return
    try:
        stat = _stat(pid)  # read after the descriptor was opened: it cannot change its meaning any more
        if stat and stat[1] == started:
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    except OSError:
        return
    finally:
        os.close(descriptor)


def _kill_groups(group: str, spared: Collection[str]) -> bool:
    """True while one of the groups that were killed still has members."""
    try:
        names = os.listdir(group)  # noqa: PTH208
    except OSError:  # the other guardian has removed it
        return False
    folders = [f"{group}/{name}" for name in names if name not in spared]
    return any([_kill_group(folder) for folder in folders if os.path.isdir(folder)])  # noqa: C419, PTH112


def _kill_group(folder: str) -> bool:
    try:
        with open(f"{folder}/cgroup.kill", "w") as file:  # noqa: PTH123
            file.write("1")
    except OSError:
        return False
    return not _remove(folder) and bool(_read(f"{folder}/cgroup.procs"))


def _remove(folder: str) -> bool:
    """True when the group and all below it is gone; one in which something lives stays."""
    try:
        for below, _, _ in os.walk(folder, topdown=False):
            os.rmdir(below)  # noqa: PTH106
    except OSError:
        return False
    return True


def main(prefix: str, group: str | None = None) -> None:
    """Waits for the supervisor's last words, or for its end."""
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    told = _last_words()
    if told != b"done":
        kill_all(prefix.encode(), _spared(told), group)
        if group:
            _remove(group)


def _last_words() -> bytes:
    """The last whole line of standard input, once that is closed."""
    last = b""
    for line in sys.stdin.buffer:
        last = line[:-1] if line.endswith(b"\n") else last
    return last


def _spared(told: bytes) -> list[str]:
    """``spare NAME NAME…``: attempts that are to outlive the supervisor."""
    verb, *names = told.decode().split() or [""]
    return names if verb == "spare" else []


if __name__ == "__main__":
    main(*sys.argv[1:])
