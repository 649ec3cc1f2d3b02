"""What a person should know of a plan: everything that is unknown, second best or not as usual."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from toolkit.config.models import Service
from toolkit.host.model import Host
from toolkit.plan.cores import quota_cpus
from toolkit.plan.devices import Device
from toolkit.plan.numa import Binding, nodes_of
from toolkit.plan.refusal import count, does_not_fit
from toolkit.plan.share_out import CoreGrant
from toolkit.units import format_cpu_list


def of_service(
    service: Service, used: Sequence[Device], cores: CoreGrant, budget: int | None, *, bound: Binding, host: Host
) -> Iterator[str]:
    """Notes on one service."""
    if used and budget is None:
        yield "memory need unknown: alone on its devices; write 'gpu_memory' to bound it"
    if cores.shared:
        yield "there are fewer cores than services: it shares its CPUs with every other service that says 'cpus: auto'"
    if cores.split:
        yield "there are too few whole cores: other services run on other threads of its cores"
    if cores.remote:
        unit = "CPU" if isinstance(service.cpus, tuple) else "core"
        yield f"{count(cores.remote, unit)} of it {'is' if cores.remote == 1 else 'are'} not near its GPUs"
    if bound.why_not:
        yield bound.why_not
    elif len(bound.nodes or ()) < len(nodes_of(cores.cpus, host)):
        yield f"memory is bound to NUMA node {format_cpu_list(bound.nodes or ())} only: the others are not allowed here"


def of_plan(host: Host, used: Sequence[Device], proven: bool) -> Iterator[str]:
    """Notes on the whole."""
    if used and host.context_bytes is None:
        yield "the size of a CUDA context is unknown on this host; 768 MiB are assumed for each process on a device"
    yield from _unknowns(used)
    quota = quota_cpus(host)
    if quota is not None and quota < len(host.cpus_allowed):
        yield f"the cgroup's quota is {host.limits.cpu_quota:g} CPUs of {len(host.cpus_allowed)} allowed ones"
    if used and host.limits.mempolicy_permitted is None and host.numa:
        yield "this host does not say whether set_mempolicy is permitted; the start checks it"
    if not proven:
        yield "the search was cut short: there may be a better placement"


def _unknowns(used: Sequence[Device]) -> Iterator[str]:
    total = _labels(d for d in used if d.total_bytes is None)
    if total:
        yield f"memory of {total} is unknown: one service only on each, and no ledger line"
    blind = _labels(d for d in used if not d.numa_known)
    if blind:
        yield f"the NUMA node of {blind} is unknown: memory of services there is not bound"
    unseen = _labels(d for d in used if d.locality is None)
    if unseen:
        yield f"the CPUs near {unseen} are unknown: services there get cores from anywhere"
    unread = _labels(d for d in used if not d.used_known)
    if unread:
        yield f"how much of {unread} is in use is unknown: nothing is set aside for it"


def _labels(devices: Iterable[Device]) -> str:
    ordered = sorted(devices, key=lambda device: (device.index, device.uuid))
    return ", ".join(dict.fromkeys(device.label for device in ordered))


def refuse_barred(name: str, wanted: Sequence[Device]) -> None:
    """Raises ToolkitError when a service named a device that is out of reach."""
    for device in wanted:
        if device.barred is not None:
            raise does_not_fit(
                f"{device.label} cannot be used: {device.barred}",
                resource="gpus",
                needed=1,
                available=0,
                services=[name],
                key="gpus",
                hint="Name another. See 'coexist host'.",
            )
