"""The supervisor's hold on its guardian process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from toolkit.supervise import guardian, process

_PROGRAM = Path(guardian.__file__)
_NONE: Mapping[str, Mapping[str, str]] = {}


# What every container of the deployment is labelled with.
LABEL = "coexist.deployment"


def label(deployment_cookie: str) -> str:
    """The label of every container of the deployment."""
    return f"{LABEL}={deployment_cookie}"


def cookie_prefix(deployment_cookie: str) -> str:
    """What the environment of every process of the deployment has a variable begin with."""
    return f"{process.COOKIE_NAME}={deployment_cookie}."


class Guard:
    """A guardian that runs; ``keep`` starts it again when somebody killed it.

    ``containers``: programs that run containers of the deployment, with the environment they are called with.
    """

    def __init__(self, deployment_cookie: str, containers: Mapping[str, Mapping[str, str]] = _NONE) -> None:
        self._arguments = (cookie_prefix(deployment_cookie), label(deployment_cookie), *containers)
        self._env = {name: value for env in containers.values() for name, value in env.items()}
        self._process = self._start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def _start(self) -> subprocess.Popen[bytes]:
        argv = [sys.executable, "-I", "-S", str(_PROGRAM), *self._arguments]
        return process.start(
            argv, env=self._env, cwd=Path("/"), stdin=subprocess.PIPE, output=subprocess.DEVNULL, dies_with_us=False
        )

    def keep(self) -> bool:
        """True when the guardian was gone and a new one was started."""
        if process.poll(self._process) is None:
            return False
        self._close_pipe()
        self._process = self._start()
        return True

    async def dismiss(self) -> None:
        """Tells it that all was stopped in good order, and reaps it."""
        assert self._process.stdin is not None  # noqa: S101 (it was started with a pipe)
        with contextlib.suppress(OSError):
            os.write(self._process.stdin.fileno(), b"done\n")
        self._close_pipe()
        while process.poll(self._process) is None:  # noqa: ASYNC110 (no event tells a child's end everywhere)
            await asyncio.sleep(0.005)

    def _close_pipe(self) -> None:
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
