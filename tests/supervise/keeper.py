"""A supervisor in a process of its own, to be killed. Forked from one that has imported all this once."""

from __future__ import annotations

import asyncio
import multiprocessing
from multiprocessing.context import ForkServerProcess
from multiprocessing.synchronize import Event
from pathlib import Path

from tests.supervise.conftest import supervise, tiny

_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload([__name__])


def start(state_dir: Path, on_death: str, *services: str) -> ForkServerProcess:
    """The process, once its services (``NAME:PORT[:FLAG…]``) are ready."""
    ready = _SERVER.Event()
    process = _SERVER.Process(target=_main, args=(ready, state_dir, on_death, *services))
    process.start()
    assert ready.wait(60.0)
    return process


def _main(ready: Event, state_dir: Path, on_death: str, *services: str) -> None:
    asyncio.run(_run(ready, state_dir, on_death, *services))


async def _run(ready: Event, state_dir: Path, on_death: str, *services: str) -> None:
    runs = [tiny(name, *flags, port=int(port)) for name, port, *flags in (each.split(":") for each in services)]
    supervisor = supervise(state_dir, *runs, on_death=on_death)
    await supervisor.start()
    await supervisor.wait_ready(30.0)
    ready.set()
    await supervisor.wait_stopped()
