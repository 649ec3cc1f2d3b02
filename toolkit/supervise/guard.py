"""The supervisor's hold on its guardian processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import Collection, Iterable
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
        self._said = b""
        self._guardians = [self._start() for _ in range(GUARDIANS)]

    @property
    def pids(self) -> list[int]:
        return [each.pid for each in self._guardians]

    def _start(self) -> subprocess.Popen[bytes]:
        return process.start(
            self._argv, env={}, cwd=Path("/"), stdin=subprocess.PIPE, output=subprocess.DEVNULL, dies_with_us=False
        )

    def spare(self, attempts: Iterable[str]) -> None:
        """From now on these attempts (``SERVICE.NUMBER``) are to outlive us, and no others."""
        said = f"spare {' '.join(sorted(attempts))}\n".encode()
        if said != self._said:
            self._said = said
            for each in self._guardians:
                _say(each, said)

    def keep(self) -> int:
        """How many guardians were gone, for each of which a new one was started."""
        gone = [each for each in self._guardians if process.poll(each) is not None]
        for each in gone:
            close_pipe(each)
            self._guardians[self._guardians.index(each)] = started = self._start()
            _say(started, self._said)
        return len(gone)

    async def dismiss(self) -> None:
        """Tells them that all was stopped in good order, and reaps them."""
        await dismiss(self._guardians)


async def dismiss(guardians: Collection[subprocess.Popen[bytes]]) -> None:
    """Tells these guardians that all was stopped in good order, and reaps them."""
    for each in guardians:
        _say(each, b"done\n")
        close_pipe(each)
    while any(process.poll(each) is None for each in guardians):  # noqa: ASYNC110 (no event tells it everywhere)
        await asyncio.sleep(0.005)


def _say(to: subprocess.Popen[bytes], words: bytes) -> None:
    """One that was stopped does not make us wait: it is told less than it should be, and kills more."""
    if to.stdin is not None:
        with contextlib.suppress(OSError):
            os.set_blocking(to.stdin.fileno(), False)
            os.write(to.stdin.fileno(), words)


def close_pipe(of: subprocess.Popen[bytes]) -> None:
    """It is told nothing more: without a last word it does what it is there for."""
    if of.stdin is not None:
        with contextlib.suppress(OSError):
            of.stdin.close()
