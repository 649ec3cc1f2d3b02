from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys

from toolkit.bench import sampling
from toolkit.bench.sampling import Samples

HOLDS_8_MIB = "held = bytearray(b'x' * (8 << 20)); print(flush=True); input()"


def test_what_children_hold_counts():
    alone = sampling.resident_bytes(os.getpid())
    child = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", HOLDS_8_MIB], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        child.stdout.readline()
        assert sampling.resident_bytes(os.getpid()) >= alone + (8 << 20) // 2
    finally:
        child.communicate(b"\n")


def test_a_process_that_is_gone_holds_nothing():
    child = subprocess.Popen(["true"])
    child.wait()
    assert sampling.resident_bytes(child.pid) == 0


async def test_readings_are_kept_by_service_and_state():
    states = iter(["PRELOAD", "PRIME", "PRIME", "PRIME"])
    samples = Samples()

    def status():
        return {
            "services": [
                {"name": "a", "pid": os.getpid(), "state": next(states, "SERVING")},
                {"name": "b", "pid": None, "state": "INIT"},
            ]
        }

    task = asyncio.create_task(sampling.sample(status, lambda: {"GPU-1": 50}, samples))
    while ("a", "SERVING") not in samples.resident:
        await asyncio.sleep(0.01)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert len(samples.resident["a", "PRIME"]) == 3
    assert all(name == "a" for name, _ in samples.resident)
    assert samples.gpu["GPU-1"][0].value == 50
