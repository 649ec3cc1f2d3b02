"""What runs already and stays as it is: how it is compared with what is wanted, and where it was placed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from pydantic import TypeAdapter, ValidationError

from toolkit.assemble.paths import Paths
from toolkit.config.models import Deployment
from toolkit.plan.model import LedgerLine, Plan, Reservation, ServicePlan
from toolkit.supervise import changes

_PREFIX = "held by "  # how the planner names the holder of a reservation


class Running(Protocol):
    """A service that runs: a ``ServiceRun``, or the record of one whose supervisor died."""

    @property
    def spec(self) -> Mapping[str, str]: ...

    @property
    def placed(self) -> Mapping[str, Any]: ...


@dataclass(frozen=True)
class Kept:
    """Where a service is, and the ledger lines of its devices."""

    service: ServicePlan
    ledger: tuple[LedgerLine, ...] = ()


_KEPT = TypeAdapter(Kept)


def placed(plan: Plan, service: ServicePlan) -> dict[str, Any]:
    """Where the service is, as JSON."""
    uuids = {device.uuid for device in service.devices}
    lines = tuple(line for line in plan.ledger if line.device_uuid in uuids)
    document: dict[str, Any] = _KEPT.dump_python(Kept(service, lines), mode="json")
    return document


def spec(deployment: Deployment, found: Paths, fingerprints: Mapping[str, str], name: str) -> dict[str, str]:
    """A digest of each thing that was asked for, by the key that asks for it; no value can be read out of it.

    ``fingerprints``: of the engines, by name.
    """
    service = deployment.services[name]
    asked: dict[str, Any] = service.model_dump(mode="json")
    asked["engine"] = [service.engine, fingerprints.get(service.engine or "")]
    asked["environment"] = [service.environment, str(found.pythons.get(name))]
    asked["model"] = str(found.models.get(name))
    return {key: _digest(value) for key, value in asked.items()}


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def still_wanted(running: Mapping[str, Running], wanted: Mapping[str, Mapping[str, str]]) -> dict[str, Kept]:
    """Those of the services that run which are wanted as they are."""
    same = {
        name: _restored(each.placed)
        for name, each in running.items()
        if name in wanted and changes.same_process(each.spec, wanted[name])
    }
    return {name: kept for name, kept in same.items() if kept is not None}


def _restored(document: Mapping[str, Any]) -> Kept | None:
    try:
        return _KEPT.validate_python(document)
    except ValidationError:  # written by another release: it is placed anew
        return None


def holder(name: str) -> str:
    """What a service that stays is called where it is in the way of another."""
    return f"service '{name}', which stays as it is"


def without(deployment: Deployment, names: Mapping[str, Kept]) -> Deployment:
    """The deployment of the other services alone, as far as they can be placed without these."""
    rest = {name: service for name, service in deployment.services.items() if name not in names}
    services = {
        name: service.model_copy(
            update={key: tuple(each for each in getattr(service, key) if each in rest) for key in ("after", "requires")}
        )
        for name, service in rest.items()
    }
    return deployment.model_copy(update={"services": services})


def joined(deployment: Deployment, kept: Mapping[str, Kept], plan: Plan) -> Plan:
    """The plan of all services: those that stay where they are, and the others as they were planned around them."""
    services = (*(each.service for each in kept.values()), *plan.services)
    lines = {line.device_uuid: line for each in kept.values() for line in each.ledger}
    lines |= {line.device_uuid: replace(line, reserved=_named(line, kept)) for line in plan.ledger}
    after = {name: service.after for name, service in deployment.services.items()}
    return replace(
        plan,
        services=tuple(replace(service, after=after[service.name]) for service in services),
        ledger=tuple(lines.values()),
    )


def _named(line: LedgerLine, kept: Mapping[str, Kept]) -> tuple[Reservation, ...]:
    owners = {f"{_PREFIX}{holder(name)}": name for name in kept}
    return tuple(replace(each, service=owners.get(each.purpose, each.service)) for each in line.reserved)
