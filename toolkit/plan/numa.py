"""NUMA nodes of a service, and whether its memory is bound to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from toolkit.host.model import Host
from toolkit.plan.devices import Device
from toolkit.units import format_cpu_list


@dataclass(frozen=True)
class Binding:
    """Nodes that memory is bound to; None with the reason in ``why_not``."""

    nodes: tuple[int, ...] | None
    why_not: str | None = None


def nodes_of(cpus: Sequence[int], host: Host) -> tuple[int, ...]:
    """The nodes that hold any of these CPUs, sorted."""
    wanted = set(cpus)
    return tuple(sorted(node.node for node in host.numa if wanted & set(node.cpus)))


def memory_only_nodes(host: Host) -> tuple[int, ...]:
    """Nodes that have no CPUs or are a GPU's own memory: the driver must be able to place pages there."""
    own = {gpu.gpu_numa_id for gpu in host.gpus if gpu.gpu_numa_id is not None}
    return tuple(sorted(own | {node.node for node in host.numa if not node.cpus}))


def binding(cpus: Sequence[int], devices: Sequence[Device], host: Host) -> Binding:
    """Where the memory of a service with these CPUs and devices is bound; nothing is guessed."""
    blind = sorted({device.index for device in devices if not device.numa_known})
    if blind:
        names = format_cpu_list(blind)
        return Binding(None, f"the NUMA node of GPU {names} is unknown on this host, so memory is not bound")
    if host.limits.mempolicy_permitted is False:
        return Binding(None, "this container does not permit set_mempolicy, so memory is not bound; CPUs are")
    if apart := memory_only_nodes(host):
        listed = format_cpu_list(apart)
        return Binding(
            None, f"NUMA node {listed} is memory only; binding would keep it from use, so memory is not bound"
        )
    nodes = nodes_of(cpus, host)
    if not nodes:
        return Binding(None, "this host does not say which NUMA nodes its CPUs are on, so memory is not bound")
    permitted = tuple(n for n in nodes if host.mems_allowed is None or n in host.mems_allowed)
    if not permitted:
        listed = format_cpu_list(nodes)
        return Binding(None, f"memory of NUMA node {listed} is not allowed here, so memory is not bound")
    return Binding(permitted)
