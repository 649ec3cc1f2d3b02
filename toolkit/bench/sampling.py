"""Ten times a second: what each service's processes hold, and how busy the GPUs are."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import psutil

from toolkit.bench.measures import At

PERIOD_S = 0.1  # the 10 Hz of the target: see docs/bench.md
Status = Callable[[], Mapping[str, Any]]


@dataclass
class Samples:
    """``resident`` by service and state, bytes of the whole tree; ``gpu`` by UUID, percent."""

    resident: dict[tuple[str, str], list[At]] = field(default_factory=lambda: defaultdict(list))
    gpu: dict[str, list[At]] = field(default_factory=lambda: defaultdict(list))


async def sample(status: Status, gpu_load: Callable[[], Mapping[str, int]], samples: Samples) -> None:
    """Reads until it is cancelled."""
    next_s = time.monotonic()
    while True:
        now_s = time.monotonic()
        for service in status()["services"]:
            if service["pid"] is not None:
                size = await asyncio.to_thread(resident_bytes, service["pid"])
                samples.resident[service["name"], service["state"]].append(At(now_s, size))
        for uuid, percent in gpu_load().items():
            samples.gpu[uuid].append(At(now_s, percent))
        next_s = max(next_s + PERIOD_S, now_s)
        await asyncio.sleep(next_s - time.monotonic())


def resident_bytes(pid: int) -> int:
    """What a process and all below it hold in memory; shared pages count for each. 0 when it is gone."""
    total = 0
    with contextlib.suppress(psutil.Error):
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                total += process.memory_info().rss
    return total
