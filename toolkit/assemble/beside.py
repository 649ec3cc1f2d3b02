"""A plan beside other deployments of the host."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from toolkit.assemble import grants, kept
from toolkit.assemble.kept import Kept
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
    staying: Mapping[str, Kept] = MappingProxyType({}),
) -> Plan:
    """The plan on what others leave. CPUs of their ``cpus: auto`` are shared by ours, when no others are left.

    What the deployment itself holds, since it runs, is no obstacle to it; but services that are ``staying`` stay
    where they are, and the others are planned around them.

    Raises: ToolkitError as ``plan.make``.
    """
    if not staying:
        return _planned(deployment, host, needs, held, ports_taken)
    rest = kept.without(deployment, staying)
    if not rest.services:
        return kept.joined(deployment, staying, Plan(deployment.name, ()))
    try:
        return kept.joined(deployment, staying, _planned(rest, host, needs, held, ports_taken, staying=staying))
    except ToolkitError as refusal:
        raise _beside_what_stays(refusal, staying) from refusal


def _beside_what_stays(refusal: ToolkitError, staying: Collection[str]) -> ToolkitError:
    names = ", ".join(f"'{name}'" for name in staying)
    hint = f"{names} run and stay where they are; 'coexist down', then 'up' plans all anew."
    return ToolkitError(
        refusal.what, refusal.where, f"{refusal.hint or ''} {hint}".strip(), code=refusal.code, **refusal.details
    )


def _planned(
    deployment: Deployment,
    host: Host,
    needs: Mapping[str, Need],
    held: Sequence[Grant],
    ports_taken: Mapping[int, str],
    *,
    staying: Collection[str] = (),
) -> Plan:
    own, names = deployment.name, {name: kept.holder(name) for name in staying}
    mine = {port for grant in held if grant.owner.deployment == own for port in grant.request.ports}
    taken = {port: who for port, who in ports_taken.items() if port not in mine}
    try:
        found = grants.held(held, own, staying=names)
        plan = planner.make(deployment, host, needs, ports_taken=taken, grants=found)
    except ToolkitError as refusal:
        if refusal.details.get("resource") != "cpus":
            raise
        given_way = grants.held(held, own, with_shared_cpus=False, staying=names)
        plan = planner.make(deployment, host, needs, ports_taken=taken, grants=given_way)
        if _clashes(plan, deployment, held, staying):
            raise refusal from None
    return replace(plan, services=tuple(_noted(service, deployment, held) for service in plan.services))


def _clashes(plan: Plan, deployment: Deployment, held: Sequence[Grant], staying: Collection[str]) -> bool:
    """Whether a service that wants CPUs for itself got some that others run on, of other deployments or staying."""
    for_itself = [service for service in plan.services if deployment.services[service.name].cpus != "auto"]
    used = {cpu for grant in held if grant.service in staying and grant.owner.deployment == plan.deployment
            for cpu in grant.request.cpus}  # fmt: skip
    return any(_shared_with(service, deployment, held) or used & set(service.cpus) for service in for_itself)


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
