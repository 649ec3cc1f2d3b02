"""A supervisor with a ledger, in a process of its own, to be killed; forked from one that has imported all this."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Event
from pathlib import Path

from tests.faults.services import services
from tests.faults.table import BY_NAME
from tests.supervise.conftest import supervise
from toolkit.assemble.reservation import Reservation, tended
from toolkit.errors import ToolkitError
from toolkit.reserve import Ledger, Owner, Request, Totals
from toolkit.supervise import logs, status_writer, supervisor
from toolkit.supervise.groups import Groups
from toolkit.supervise.state import StateFolder

_SERVER = multiprocessing.get_context("forkserver")


@dataclass(frozen=True)
class Job:
    """``fault``: its row; None: the supervisor that comes after a dead one."""

    fault: str | None
    folder: Path
    ports: Mapping[str, int]

    @property
    def state_dir(self) -> Path:
        return self.folder / "state"


def ledger(folder: Path) -> Ledger:
    return Ledger(folder / "run" / "ledger.json")


@dataclass(frozen=True)
class Keeper:
    """The process; ``shift_s`` is added to its date."""

    process: ForkServerProcess
    shift_s: Synchronized[float]


def start(job: Job) -> Keeper:
    """Returns when its control socket answers; what its services do by then is not said."""
    _SERVER.set_forkserver_preload([__name__])
    begun, shift_s = _SERVER.Event(), _SERVER.Value("d", 0.0)
    process = _SERVER.Process(target=_main, args=(job, begun, shift_s))
    process.start()
    assert begun.wait(60.0)
    return Keeper(process, shift_s)


def _main(job: Job, begun: Event, shift_s: Synchronized[float]) -> None:
    os.environ["COEXIST_RUNTIME_DIR"] = str(job.folder / "run")
    real = time.time
    time.time = lambda: real() + shift_s.value
    logs.MAX_BYTES = 100_000
    status_writer.RETRY_S = supervisor._HOUSEKEEPING_S = 0.05
    asyncio.run(_run(job, begun))


async def _run(job: Job, begun: Event) -> None:
    fault = BY_NAME[job.fault] if job.fault else None
    runs = services(fault, job.folder, job.ports)
    left = {name: record.identity for name, record in StateFolder(job.state_dir).left().items()}
    requests = {run.name: Request(ports=(run.port,)) for run in runs}
    held = Reservation(ledger(job.folder), Owner.current("tiny"), requests, Totals(), adopted=left)
    try:
        async with tended(held) as noted:
            made = supervise(
                job.state_dir, *runs, reserve=held.hold, keep=held.keep, on_change=noted, watch_s=0.1,
                deep_s=fault.deep_s if fault else 30.0, on_death=fault.on_death if fault else "kill",
                find_groups=_no_groups if fault and not fault.groups else Groups.find,
            )  # fmt: skip
            with contextlib.suppress(ToolkitError):  # its services were given up: the status says so
                await _supervised(made, begun)
    finally:
        held.release()


def _no_groups(_: str) -> None:
    return None


async def _supervised(made: supervisor.Supervisor, begun: Event) -> None:
    await made.start()
    begun.set()
    try:
        await made.wait_stopped()
    finally:
        await made.close()
