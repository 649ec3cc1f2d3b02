"""One look at a running tree: its threads, its pages, and who uses the devices."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from toolkit.affinity import Report, measure, verify
from toolkit.host.gpu_use import DeviceUse
from toolkit.supervise.placement import Seen
from toolkit.supervise.service import ServiceRun

GpuUse = Callable[[], tuple[DeviceUse, ...]]


def look(run: ServiceRun, pids: Iterable[int], gpu_use: GpuUse, proc: Path = Path("/proc")) -> Seen:
    """What is to be seen of these processes. Reads /proc and asks the driver: not for the event loop."""
    tree = sorted(pids)
    threads = verify(tree, run.cpus, proc) if run.cpus else Report(0, (), ())
    pages = measure(tree, run.expected.memory_nodes, run.expected.node_count, proc)
    return Seen(frozenset(tree), threads, pages, gpu_use())
