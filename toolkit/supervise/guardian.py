"""Outlives the supervisor: when its standard input closes without ``done``, it kills all that carries the cookie.

Standard library only; started as ``python -I -S guardian.py NAME=PREFIX``. It carries no cookie itself.
"""

from __future__ import annotations

import os
import signal
import sys
import time

LIMIT_S = 60.0
QUIET_ROUNDS = 5


def carriers(prefix: bytes, proc: str = "/proc") -> list[int]:
    """Processes, other than this one, whose environment has a variable that starts with ``prefix``."""
    others = (entry for entry in os.listdir(proc) if entry.isdigit() and int(entry) != os.getpid())  # noqa: PTH208
    return [int(entry) for entry in others if _carries(f"{proc}/{entry}/environ", prefix)]


def _carries(path: str, prefix: bytes) -> bool:
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            return any(variable.startswith(prefix) for variable in file.read().split(b"\0"))
    except OSError:
        return False


def kill_all(prefix: bytes) -> None:
    """Returns when no carrier was seen for a few rounds, or after a minute."""
    deadline, quiet = time.monotonic() + LIMIT_S, 0
    while quiet < QUIET_ROUNDS and time.monotonic() < deadline:
        found = carriers(prefix)
        quiet = 0 if found else quiet + 1
        for pid in found:
            _kill(pid, prefix)
        time.sleep(0.02)


def _kill(pid: int, prefix: bytes) -> None:
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return
    try:
        if _carries(f"/proc/{pid}/environ", prefix):
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    except OSError:
        return
    finally:
        os.close(descriptor)


def main(prefix: str) -> None:
    """Waits for the supervisor's last word, or for its end."""
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    said = sys.stdin.buffer.read()
    if not said.endswith(b"done\n"):
        kill_all(prefix.encode())


if __name__ == "__main__":
    main(sys.argv[1])
