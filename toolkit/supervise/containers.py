"""Containers of attempts: found by their labels, stopped by their ids.

The process that an attempt starts is only the client; whoever kills it leaves the container running.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from collections.abc import Sequence
from pathlib import Path

from toolkit import processes
from toolkit.runtimes.base import Container
from toolkit.supervise import guardian
from toolkit.supervise.guard import label
from toolkit.supervise.process import COOKIE_NAME

ATTEMPT = "coexist.attempt"
_LIMIT_S = 20.0


def labelled(argv: Sequence[str], deployment_cookie: str, attempt_cookie: str) -> tuple[str, ...]:
    """The argv of a client's ``run``, its container named and marked as one of this deployment and attempt.

    The cookie in its environment shows whose its processes are, where we may read that.
    """
    program, run, *rest = argv
    at = rest.index("--name") + 1
    # The container of the last start may still be on its way out, and keeps its name so long.
    rest[at] += f"-{attempt_cookie.rpartition('.')[2]}-{deployment_cookie[:6]}"
    labels = ("--label", label(deployment_cookie), "--label", f"{ATTEMPT}={attempt_cookie}")
    return (program, run, *labels, "--env", f"{COOKIE_NAME}={attempt_cookie}", *rest)


def forget(container: Container) -> None:
    """Removes the id of an earlier attempt's container: a client refuses to write over it."""
    container.id_file.unlink(missing_ok=True)


async def stop(container: Container, attempt_cookie: str, grace_s: float) -> None:
    """Asks the container to end; after ``grace_s`` it is killed. An answer is not waited for longer than that."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):  # what is still there is removed afterwards
        ids = await asyncio.to_thread(_ids, container, attempt_cookie)
        if ids:
            await asyncio.to_thread(_stop, container, ids, grace_s)


def _stop(container: Container, ids: Sequence[str], grace_s: float) -> None:
    seconds = str(max(1, round(grace_s)))
    limit_s = grace_s + _LIMIT_S
    guardian.client(container.program, "stop", "-t", seconds, *ids, env=dict(container.client_env), timeout_s=limit_s)


async def remove(container: Container, attempt_cookie: str) -> str | None:
    """None once nothing of the attempt's container is left, else why not."""
    return await asyncio.to_thread(remove_now, container, attempt_cookie)


def remove_now(container: Container, attempt_cookie: str, limit_s: float = _LIMIT_S) -> str | None:
    """As ``remove``; blocks."""
    env = dict(container.client_env)
    return guardian.remove_containers(container.program, f"{ATTEMPT}={attempt_cookie}", env, limit_s)


def pids(container: Container) -> tuple[int, ...]:
    """The processes in the container, as this machine numbers them; empty where that cannot be told. Blocks."""
    try:
        found = container.id_file.read_text().strip()
        told = guardian.client(
            container.program, "inspect", "--format", "{{.State.Pid}}", found, env=dict(container.client_env)
        )
        main = int(told)
    except (OSError, ValueError, subprocess.SubprocessError):
        return ()
    # 0: it has ended, or the engine is on another machine.
    return tuple(processes.descendants(main)) if main > 0 and Path(f"/proc/{main}").exists() else ()


def _ids(container: Container, attempt_cookie: str) -> list[str]:
    """The id that the client wrote down; before that, whatever has the attempt's label."""
    with contextlib.suppress(OSError):
        if written := container.id_file.read_text().split():
            return written
    return guardian.containers(container.program, f"{ATTEMPT}={attempt_cookie}", dict(container.client_env))
