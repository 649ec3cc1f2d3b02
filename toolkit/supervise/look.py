"""One look at a running tree: its threads, its pages, and who uses the devices."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
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


def held_bytes(uuids: Collection[str], gpu_use: GpuUse, pids: Collection[int]) -> int | None:
    """What these processes hold of these devices, as the driver tells; None: no devices, or it does not tell."""
    if not uuids:
        return None
    holders = [holder for use in gpu_use() if use.uuid in uuids for holder in use.holders if holder.pid in pids]
    sizes = [holder.used_bytes for holder in holders]
    return None if None in sizes else sum(size for size in sizes if size is not None)
