"""Two hundred starts and stops of a tiny service leave nothing behind."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.ports import free_port
from tests.supervise.conftest import RUN, carriers, state_of, until
from toolkit import processes
from toolkit.config.models import Restart
from toolkit.runtimes.base import Launch, LogProbe, Probes
from toolkit.supervise.clock import SystemClock
from toolkit.supervise.service import ServiceRun
from toolkit.supervise.supervisor import Supervisor

Start = Callable[..., Any]
CYCLES, HALF = 200, 100


class Hasty(SystemClock):
    """Short waits for what is about to happen are shorter."""

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds if seconds > 1 else min(seconds, 0.005))


@dataclass(frozen=True)
class Held:
    """What this process holds of the machine."""

    descriptors: int
    children: int
    threads: int
    objects: int
    resident_bytes: int


def held() -> Held:
    gc.collect()
    own = processes.stat(os.getpid())
    assert own is not None
    return Held(
        len(list(Path("/proc/self/fd").iterdir())),
        len(processes.children(os.getpid())),
        threading.active_count(),
        len(gc.get_objects()),
        own.resident_bytes,
    )


def tiny_shell(name: str) -> ServiceRun:
    def launch(_: int) -> Launch:
        argv = ("/bin/sh", "-c", "echo up; exec sleep 600")
        return Launch(argv, {"WHO": f"{name}-{RUN}", "PATH": os.defpath}, Probes(LogProbe("^up$")))

    return ServiceRun(name, "command", launch, free_port(), grace_s=2.0, restart=Restart(max_restarts=0))


async def cycle(supervisor: Supervisor, name: str) -> None:
    supervisor.stop(name)
    await supervisor._until(lambda: state_of(supervisor, name) == "STOPPED")
    supervisor.restart(name)
    await supervisor._until(lambda: state_of(supervisor, name) == "SERVING")


@pytest.mark.slow
async def test_200_cycles_leak_no_descriptor_no_process_no_thread_and_no_memory(running: Start) -> None:
    supervisor = await running(tiny_shell("cycle"), clock=Hasty())
    await supervisor.wait_ready(20.0)
    for _ in range(HALF):
        await cycle(supervisor, "cycle")
    half = held()
    for _ in range(CYCLES - HALF):
        await cycle(supervisor, "cycle")
    assert len(carriers("cycle")) == 1
    await until(lambda: held().descriptors <= half.descriptors)
    full = held()
    assert full.children == half.children
    pool = min(32, (os.cpu_count() or 1) + 4)  # the event loop's own, which fills slowly
    assert full.threads <= half.threads + pool
    # Ten objects of each attempt would be seen; an attempt has dozens. The journal keeps its last thousand events.
    assert full.objects - half.objects < 10 * (CYCLES - HALF)
    assert full.resident_bytes - half.resident_bytes < 4 * 1024**2
