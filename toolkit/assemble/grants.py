"""What a plan asks of the host-wide ledger, and what the ledger holds for others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from toolkit import processes
from toolkit.config.models import Deployment
from toolkit.host.model import Host
from toolkit.plan.devices import Device, ceil_mib, devices
from toolkit.plan.model import Grant as Held
from toolkit.plan.model import Plan, ServicePlan
from toolkit.reserve import GpuClaim, Grant, Owner, Request, Totals
from toolkit.reserve.model import owner_is_alive


def requests(
    plan: Plan, deployment: Deployment, context_bytes: int, host_bytes: Mapping[str, int]
) -> dict[str, Request]:
    """What each service needs, to be granted together; ``context_bytes`` come on top of each budget.

    ``host_bytes``: main memory of services whose need is known.
    """
    return {
        service.name: _request(service, deployment, context_bytes, host_bytes.get(service.name, 0))
        for service in plan.services
    }


def _request(planned: ServicePlan, deployment: Deployment, context_bytes: int, host_bytes: int) -> Request:
    service = deployment.services[planned.name]
    budgets = [(device.uuid, device.budget_bytes) for device in planned.devices]
    nodes = planned.memory_bind or ()  # where memory is not bound, no node can be charged for it
    return Request(
        gpus=tuple(
            GpuClaim(uuid=uuid, share=service.gpus.share, memory_bytes=None if size is None else size + context_bytes)
            for uuid, size in budgets
        ),
        cpus=planned.cpus,
        # 'auto' takes what is left and gives way; only a number or a list is exclusive.
        cpus_shared=service.cpus == "auto",
        numa_bytes={node: -(-host_bytes // len(nodes)) for node in nodes} if host_bytes else {},
        ports=(planned.port,),
    )


def totals(host: Host, others: Sequence[Held]) -> Totals:
    """What there is to grant, the grants of others included: each device's memory less what foreign processes hold."""
    found = {device.uuid: _grantable(device, others) for device in devices(host, others)}
    return Totals(gpu_bytes=found, numa_bytes=_of_nodes(host))


def _of_nodes(host: Host) -> dict[int, int | None]:
    """Bytes of each node; of a host with one, what processes may take there. Nodes that may grow are unknown."""
    if len(host.numa) == 1:
        return {host.numa[0].node: host.memory_bytes}
    sizes = {node.node: node.memory_bytes for node in host.numa}
    grows = host.memory_bytes is not None and sum(size or 0 for size in sizes.values()) < host.memory_bytes * 9 // 10
    return dict.fromkeys(sizes) if grows else dict(sizes)


def _grantable(device: Device, others: Sequence[Held]) -> int | None:
    if device.usable_bytes is None:
        return None
    return device.usable_bytes + sum(ceil_mib(held.devices.get(device.uuid) or 0) for held in others)


def held(
    grants: Sequence[Grant],
    own: str | None = None,
    *,
    with_shared_cpus: bool = True,
    staying: Mapping[str, str] = MappingProxyType({}),
) -> tuple[Held, ...]:
    """What other deployments hold, as the planner takes it; CPUs that give way only when asked for.

    The deployment named ``own`` holds nothing against itself, but what its processes use is nobody else's. Its
    services in ``staying`` do hold what they have, under the name that is given there.
    """
    return tuple(_held(grant, own, with_shared_cpus or not grant.request.cpus_shared, staying) for grant in grants)


def processes_of(*grants: Grant) -> frozenset[int]:
    """The supervisors, the processes that keep the grants, and all that they started, as far as their pids are ours."""
    here = (None, processes.this_process().pid_namespace)
    holders = {each for grant in grants for each in (grant.owner, grant.kept_by) if each}
    holders = {each for each in holders if each.pid_namespace in here}
    return frozenset(processes.tree([each.pid for each in holders if owner_is_alive(each)]))


def _held(grant: Grant, own: str | None, with_cpus: bool, staying: Mapping[str, str]) -> Held:
    request, pids = grant.request, processes_of(grant)
    mine = grant.owner.deployment == own
    if mine and grant.service not in staying:
        return Held(owner=_name(grant.owner), pids=pids)
    return Held(
        owner=staying[grant.service] if mine and grant.service else _name(grant.owner),
        cpus=request.cpus if with_cpus else (),
        devices={claim.uuid: claim.memory_bytes if claim.share else None for claim in request.gpus},
        ports=request.ports,
        pids=pids,
    )


def _name(owner: Owner) -> str:
    return f"deployment '{owner.deployment}'"
