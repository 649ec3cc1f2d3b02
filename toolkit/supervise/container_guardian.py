"""Outlives the supervisor: when its standard input closes without ``done``, it removes the containers of a label.

Standard library only; started as ``python -I -S container_guardian.py LABEL=VALUE PROGRAM…``.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping

CLIENT_TIMEOUT_S = 20.0
LIMIT_S = 60.0
QUIET_LOOKS = 2  # a client that was killed may just have asked for a container


def client(program: str, *arguments: str, env: Mapping[str, str], timeout_s: float = CLIENT_TIMEOUT_S) -> str:
    """What a container program printed. Raises: OSError, subprocess.SubprocessError when it failed or hung."""
    done = subprocess.run(
        [program, *arguments], env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s, check=True
    )
    return done.stdout.decode("utf-8", "replace")


def ids(program: str, label: str, env: Mapping[str, str]) -> set[str]:
    """Ids of the containers with this ``NAME=VALUE``, running or not. Raises: as ``client``."""
    return set(client(program, "ps", "-a", "-q", "--no-trunc", "--filter", f"label={label}", env=env).split())


def remove(program: str, label: str, env: Mapping[str, str], limit_s: float = LIMIT_S) -> str | None:
    """None once every container with this ``NAME=VALUE`` is killed and removed, else why not."""
    deadline, quiet = time.monotonic() + limit_s, 0
    while True:
        left = _remove_seen(program, label, env)
        quiet = 0 if left else quiet + 1
        if quiet == QUIET_LOOKS or (left and time.monotonic() > deadline):
            return left
        time.sleep(0.05)


def _remove_seen(program: str, label: str, env: Mapping[str, str]) -> str | None:
    """What was there; None: nothing."""
    try:
        found = ids(program, label, env)
        if found:
            client(program, "rm", "-f", *sorted(found), env=env)
    except subprocess.CalledProcessError as error:
        return f"{program} failed: {error.stderr.decode('utf-8', 'replace').strip()[-200:]}"
    except (OSError, subprocess.SubprocessError) as error:
        return f"{program} cannot tell what runs: {error}"
    return f"containers {', '.join(each[:12] for each in sorted(found))} are still there" if found else None


def main(label: str, *programs: str) -> None:
    """Waits for the supervisor's last word, or for its end."""
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    if not sys.stdin.buffer.read().endswith(b"done\n"):
        for program in programs:
            remove(program, label, os.environ)


if __name__ == "__main__":
    main(*sys.argv[1:])
