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


def has_gpu_nodes(host: Host) -> bool:
    """Whether GPU memory shows up as NUMA nodes of its own, so that the driver allocates from nodes without CPUs."""
    without_cpus = {node.node for node in host.numa if not node.cpus}
    return any(gpu.gpu_numa_id is not None and gpu.gpu_numa_id in without_cpus for gpu in host.gpus)


def binding(cpus: Sequence[int], devices: Sequence[Device], host: Host) -> Binding:
    """Where the memory of a service with these CPUs and devices is bound; nothing is guessed."""
    blind = sorted({device.index for device in devices if not device.numa_known})
    if blind:
        names = format_cpu_list(blind)
        return Binding(None, f"the NUMA node of GPU {names} is unknown on this host, so memory is not bound")
    if host.limits.mempolicy_permitted is False:
        return Binding(None, "this container does not permit set_mempolicy, so memory is not bound; CPUs are")
    if devices and has_gpu_nodes(host):
        return Binding(
            None, "GPU memory is NUMA nodes here; binding memory would keep the driver from them, so it is not"
        )
    nodes = nodes_of(cpus, host)
    if not nodes:
        return Binding(None, "this host does not say which NUMA nodes its CPUs are on, so memory is not bound")
    permitted = tuple(n for n in nodes if host.mems_allowed is None or n in host.mems_allowed)
    if not permitted:
        listed = format_cpu_list(nodes)
        return Binding(None, f"memory of NUMA node {listed} is not allowed here, so memory is not bound")
    return Binding(permitted)
