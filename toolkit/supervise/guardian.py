"""Outlives the supervisor: when its standard input closes without ``done``, it kills all that carries the cookie.

Standard library only; started as ``python -I -S guardian.py NAME=PREFIX [GROUP]``. It carries no cookie itself. What
is in a control group below GROUP is killed too, and what descends from a carrier with an environment of its own.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Collection

LIMIT_S = 60.0
QUIET_ROUNDS = 5
Process = tuple[int, int]  # pid, and start time in clock ticks since boot: the two together are used once


def carriers(prefix: bytes, proc: str = "/proc", spared: Collection[bytes] = ()) -> list[int]:
    """Processes, other than this one, whose environment has a variable that starts with ``prefix``.

    ``spared``: variables whose carriers are left out.
    """
    others = (entry for entry in os.listdir(proc) if entry.isdigit() and int(entry) != os.getpid())  # noqa: PTH208
    return [int(entry) for entry in others if _carries(f"{proc}/{entry}/environ", prefix, spared)]


def _carries(path: str, prefix: bytes, spared: Collection[bytes]) -> bool:
    variables = _read(path).split(b"\0")
    return any(each.startswith(prefix) and each not in spared for each in variables)


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            return file.read()
    except OSError:
        return b""


def _targets(prefix: bytes, spared: Collection[bytes], proc: str = "/proc") -> list[Process]:
    """Carriers and all that descends from them; zombies are none."""
    found = {int(entry): _stat(int(entry), proc) for entry in os.listdir(proc) if entry.isdigit()}  # noqa: PTH208
    ours = set(carriers(prefix, proc, spared))
    more = True
    while more:
        below = {pid for pid, (parent, _, _) in found.items() if parent in ours} - ours - {os.getpid()}
        more = bool(below)
        ours |= below
    return [(pid, found[pid][1]) for pid in sorted(ours) if pid in found and not found[pid][2]]


def _stat(pid: int, proc: str = "/proc") -> tuple[int, int, bool]:
    """Parent, start time, and whether only its exit status is left; zeros when it is gone."""
    fields = _read(f"{proc}/{pid}/stat").rpartition(b")")[2].split()
    return (int(fields[1]), int(fields[19]), fields[0] in (b"Z", b"X")) if fields else (0, 0, True)


def kill_all(prefix: bytes, spared: Collection[bytes] = (), group: str | None = None) -> None:
    """Returns when nothing was seen for a few rounds, or after a minute; ``spared``: variables of who may live."""
    deadline, quiet = time.monotonic() + LIMIT_S, 0
    kept = {variable.rpartition(b".")[0].rpartition(b".")[2] + b"." + variable.rpartition(b".")[2] for variable in spared}
    while quiet < QUIET_ROUNDS and time.monotonic() < deadline:
        _kill_groups(group, kept)
        found = _targets(prefix, spared)
        quiet = 0 if found else quiet + 1
        for process in found:
            _kill(process)
        time.sleep(0.02)
