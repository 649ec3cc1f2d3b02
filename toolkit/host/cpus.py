"""Cores, caches and NUMA nodes as /sys tells them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from toolkit.host.files import read_cpus, read_int, read_text, to_int
from toolkit.host.model import Core, NumaNode
from toolkit.units import KIB

_MEM_TOTAL = re.compile(r"MemTotal:\s*(\d+) kB")


def read_cores(sysfs: Path, fallback: tuple[int, ...], nodes: tuple[NumaNode, ...]) -> tuple[Core, ...]:
    """Physical cores with their online logical CPUs; without a topology in /sys each CPU is a core."""
    root = sysfs / "devices/system/cpu"
    online = read_cpus(root / "online") or fallback
    node_of = {cpu: node.node for node in nodes for cpu in node.cpus}
    siblings = _groups(online, lambda cpu: _siblings(root / f"cpu{cpu}"))
    caches = _groups(online, lambda cpu: _shared_cache(root / f"cpu{cpu}/cache"))
    cache_of = {cpu: number for number, group in enumerate(caches) for cpu in group}
    return tuple(
        Core(
            cpus=group,
            numa_node=node_of.get(group[0]),
            cache_group=cache_of.get(group[0]),
            socket=_known(read_int(root / f"cpu{group[0]}/topology/physical_package_id")),
        )
        for group in siblings
    )


def _groups(online: tuple[int, ...], members: Callable[[int], tuple[int, ...] | None]) -> list[tuple[int, ...]]:
    """CPUs in groups, each asked for once; a CPU of which nothing is known is a group of its own."""
    left, groups = dict.fromkeys(online), []
    while left:
        cpu = next(iter(left))
        group = tuple(sorted({cpu, *(members(cpu) or ())} & left.keys()))
        groups.append(group)
        for member in group:
            del left[member]
    return groups


def _siblings(cpu: Path) -> tuple[int, ...] | None:
    found = read_cpus(cpu / "topology/thread_siblings_list")
    return found if found is not None else read_cpus(cpu / "topology/core_cpus_list")


def _shared_cache(caches: Path) -> tuple[int, ...] | None:
    """CPUs that share the last-level cache; index3 is it on most machines, so it is tried first."""
    if read_int(caches / "index3/level") == 3:
        return read_cpus(caches / "index3/shared_cpu_list")
    levels = {read_int(index / "level") or 0: index for index in sorted(caches.glob("index[0-9]*"))}
    return read_cpus(levels[max(levels)] / "shared_cpu_list") if levels else None


def _known(number: int | None) -> int | None:
    return number if number is not None and number >= 0 else None


def read_nodes(sysfs: Path) -> tuple[NumaNode, ...]:
    """NUMA nodes online with their CPUs, memory and distances; () when the kernel has none to tell."""
    root = sysfs / "devices/system/node"
    online = read_cpus(root / "online") or ()
    return tuple(_node(root / f"node{node}", node, online) for node in online if (root / f"node{node}").is_dir())


def _node(folder: Path, node: int, online: tuple[int, ...]) -> NumaNode:
    distances = [to_int(word) for word in (read_text(folder / "distance") or "").split()]
    total = _MEM_TOTAL.search(read_text(folder / "meminfo") or "")
    return NumaNode(
        node=node,
        cpus=read_cpus(folder / "cpulist") or (),
        memory_bytes=int(total[1]) * KIB if total else None,
        # The kernel prints one distance per node online, in their order.
        distances={to: far for to, far in zip(online, distances, strict=False) if far is not None},
    )
