"""A plan beside other deployments of the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from toolkit.assemble import grants
from toolkit.config.models import Deployment
from toolkit.errors import ToolkitError
from toolkit.host.model import Host
from toolkit.plan import Need, Plan, planner
from toolkit.plan.model import ServicePlan
from toolkit.reserve import Grant
from toolkit.units import format_cpu_list


def make(
    deployment: Deployment,
    host: Host,
    needs: Mapping[str, Need],
    *,
    held: Sequence[Grant],
    ports_taken: Mapping[int, str],
) -> Plan:
    """The plan on what others leave. CPUs of their ``cpus: auto`` are shared by ours, when no others are left.

    What the deployment itself holds, since it runs, is no obstacle to it.

    Raises: ToolkitError as ``plan.make``.
    """
    own = deployment.name
    mine = {port for grant in held if grant.owner.deployment == own for port in grant.request.ports}
    taken = {port: who for port, who in ports_taken.items() if port not in mine}
    try:
        return planner.make(deployment, host, needs, ports_taken=taken, grants=grants.held(held, own))
    except ToolkitError as refusal:
        if refusal.details.get("resource") != "cpus":
            raise
        given_way = grants.held(held, own, with_shared_cpus=False)
        plan = planner.make(deployment, host, needs, ports_taken=taken, grants=given_way)
        if _clashes(plan, deployment, held):
            raise refusal from None
    return replace(plan, services=tuple(_noted(service, deployment, held) for service in plan.services))


def _clashes(plan: Plan, deployment: Deployment, held: Sequence[Grant]) -> bool:
    """Whether a service that wants CPUs for itself got some that others run on."""
    for_itself = [service for service in plan.services if deployment.services[service.name].cpus != "auto"]
    return any(_shared_with(service, deployment, held) for service in for_itself)


def _shared_with(service: ServicePlan, deployment: Deployment, held: Sequence[Grant]) -> dict[str, set[int]]:
    """CPUs of the service that other deployments' services have, by deployment."""
    found: dict[str, set[int]] = {}
    for grant in held:
        common = set(grant.request.cpus) & set(service.cpus)
        if common and grant.owner.deployment != deployment.name:
            found.setdefault(grant.owner.deployment, set()).update(common)
    return found


def _noted(service: ServicePlan, deployment: Deployment, held: Sequence[Grant]) -> ServicePlan:
    shared = _shared_with(service, deployment, held)
    notes = [f"shares CPUs {format_cpu_list(cpus)} with deployment '{name}'" for name, cpus in shared.items()]
    return replace(service, cpus_shared=service.cpus_shared or bool(shared), notes=(*service.notes, *notes))
