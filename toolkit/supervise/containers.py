"""Containers of attempts: found by their labels, stopped by their ids.

The process that an attempt starts is only the client; whoever kills it leaves the container running.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from toolkit import processes
from toolkit.runtimes.base import Container
from toolkit.supervise import container_guardian as guardian
from toolkit.supervise import guard, process
from toolkit.supervise.process import COOKIE_NAME

DEPLOYMENT, ATTEMPT = "coexist.deployment", "coexist.attempt"
_PROGRAM = Path(guardian.__file__)
_LIMIT_S = 20.0
_LAST_LIMIT_S = 5.0


def labelled(argv: Sequence[str], deployment_cookie: str, attempt_cookie: str) -> tuple[str, ...]:
    """The argv of a client's ``run``, its container named and marked as one of this deployment and attempt.

    The cookie in its environment shows whose its processes are, where we may read that.
    """
    program, run, *rest = argv
    at = rest.index("--name") + 1
    # The container of the last start may still be on its way out, and keeps its name so long.
    rest[at] += f"-{attempt_cookie.rpartition('.')[2]}-{deployment_cookie[:6]}"
    labels = ("--label", f"{DEPLOYMENT}={deployment_cookie}", "--label", f"{ATTEMPT}={attempt_cookie}")
    return (program, run, *labels, "--env", f"{COOKIE_NAME}={attempt_cookie}", *rest)


def forget(container: Container) -> None:
    """Removes the id of an earlier attempt's container: a client refuses to write over it."""
    container.id_file.unlink(missing_ok=True)


def stop(container: Container, attempt_cookie: str, grace_s: float) -> None:
    """Asks the container to end; after ``grace_s`` it is killed. Blocks until it has ended."""
    env, limit_s = container.client_env, grace_s + _LIMIT_S
    with contextlib.suppress(OSError, subprocess.SubprocessError):  # what is still there is removed afterwards
        if found := _ids(container, attempt_cookie):
            seconds = str(max(1, round(grace_s)))
            guardian.client(container.program, "stop", "-t", seconds, *found, env=env, timeout_s=limit_s)


def remove(container: Container, attempt_cookie: str, limit_s: float = _LIMIT_S) -> str | None:
    """None once nothing of the attempt's container is left, else why not. Blocks."""
    return guardian.remove(container.program, f"{ATTEMPT}={attempt_cookie}", container.client_env, limit_s)


def remove_now(container: Container, attempt_cookie: str) -> None:
    """As ``remove``, for a supervisor that has no time left."""
    remove(container, attempt_cookie, _LAST_LIMIT_S)


def remove_left(used: Iterable[Container], deployment_cookie: str) -> None:
    """Removes what an earlier supervisor left behind. Blocks."""
    for program, env in clients(used).items():
        guardian.remove(program, f"{DEPLOYMENT}={deployment_cookie}", env, _LIMIT_S)


def clients(used: Iterable[Container]) -> Mapping[str, Mapping[str, str]]:
    """The programs that run these containers, each with what it is called with."""
    return {container.program: container.client_env for container in used}


def pids(container: Container) -> tuple[int, ...]:
    """The processes in the container, as this machine numbers them; empty where that cannot be told. Blocks."""
    try:
        found = container.id_file.read_text().strip()
        format_ = ("--format", "{{.State.Pid}}")
        main = int(guardian.client(container.program, "inspect", *format_, found, env=container.client_env))
    except (OSError, ValueError, subprocess.SubprocessError):
        return ()
    # 0: it has ended. No such process: the engine is on another machine.
    return tuple(processes.descendants(main)) if main > 0 and processes.stat(main) else ()


def _ids(container: Container, attempt_cookie: str) -> Collection[str]:
    """The id that the client wrote down; before that, whatever has the attempt's label."""
    with contextlib.suppress(OSError):
        if written := container.id_file.read_text().split():
            return written
    return guardian.ids(container.program, f"{ATTEMPT}={attempt_cookie}", container.client_env)


class Guard:
    """A guardian for each program that runs containers of the deployment; without containers there is none."""

    def __init__(self, deployment_cookie: str, used: Iterable[Container]) -> None:
        self._label = f"{DEPLOYMENT}={deployment_cookie}"
        self._clients: dict[str, Mapping[str, str]] = {}
        self._guardians: dict[str, subprocess.Popen[bytes]] = {}
        self.cover(used)

    def cover(self, used: Iterable[Container]) -> None:
        """From now on these containers are removed, too, when we are gone. Raises: ToolkitError."""
        for program, env in clients(used).items():
            if program not in self._guardians:
                self._clients[program] = env
                self._guardians[program] = self._start(program)

    def _start(self, program: str) -> subprocess.Popen[bytes]:
        argv = [sys.executable, "-I", "-S", str(_PROGRAM), self._label, program]
        return process.start(
            argv, env=self._clients[program], cwd=Path("/"), stdin=subprocess.PIPE, output=subprocess.DEVNULL,
            dies_with_us=False,
        )  # fmt: skip

    def keep(self) -> bool:
        """True when a guardian was gone and a new one was started."""
        gone = [program for program, each in self._guardians.items() if process.poll(each) is not None]
        for program in gone:
            guard.close_pipe(self._guardians[program])
            self._guardians[program] = self._start(program)
        return bool(gone)

    async def dismiss(self) -> None:
        """Tells them that all was stopped in good order, and reaps them."""
        await guard.dismiss(self._guardians.values())
