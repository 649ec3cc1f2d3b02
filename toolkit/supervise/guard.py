"""The supervisor's hold on its guardian processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from pathlib import Path

from toolkit.supervise import guardian, process
from toolkit.supervise.groups import Groups

_PROGRAM = Path(guardian.__file__)
GUARDIANS = 2  # whoever kills the supervisor and a guardian in one stroke leaves the other


def cookie_prefix(deployment_cookie: str) -> str:
    """What the environment of every process of the deployment has a variable begin with."""
    return f"{process.COOKIE_NAME}={deployment_cookie}."


class Guard:
    """Guardians that run; ``keep`` starts those again that somebody killed."""

    def __init__(self, deployment_cookie: str, groups: Groups | None = None) -> None:
        self._argv = [sys.executable, "-I", "-S", str(_PROGRAM), cookie_prefix(deployment_cookie)]
        self._argv += [str(groups.folder)] if groups else []
        self._guardians = [self._start() for _ in range(GUARDIANS)]

    @property
    def pids(self) -> list[int]:
        return [each.pid for each in self._guardians]

    def _start(self) -> subprocess.Popen[bytes]:
        return process.start(
            self._argv, env={}, cwd=Path("/"), stdin=subprocess.PIPE, output=subprocess.DEVNULL, dies_with_us=False
        )

    def keep(self) -> int:
        """How many guardians were gone, for each of which a new one was started."""
        gone = [each for each in self._guardians if process.poll(each) is not None]
        for each in gone:
            _close_pipe(each)
            self._guardians[self._guardians.index(each)] = self._start()
        return len(gone)

    async def dismiss(self) -> None:
        """Tells them that all was stopped in good order, and reaps them."""
        for each in self._guardians:
            assert each.stdin is not None  # noqa: S101 (it was started with a pipe)
            with contextlib.suppress(OSError):
                os.write(each.stdin.fileno(), b"done\n")
            _close_pipe(each)
        while any(process.poll(each) is None for each in self._guardians):  # noqa: ASYNC110 (no event tells it everywhere)
            await asyncio.sleep(0.005)


def _close_pipe(of: subprocess.Popen[bytes]) -> None:
    if of.stdin is not None:
        with contextlib.suppress(OSError):
            of.stdin.close()
