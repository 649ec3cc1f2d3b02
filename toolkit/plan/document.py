"""A plan as the document of ``coexist plan --json``. Secrets of a launch are masked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from toolkit.masking import masked_argv, masked_env
from toolkit.plan.model import LedgerLine, Plan, Reservation, ServicePlan
from toolkit.units import MIB, format_cpu_list

Launches = Mapping[str, tuple[Sequence[str], Mapping[str, str]]]


def document(plan: Plan, launches: Launches) -> dict[str, Any]:
    """The plan's JSON; ``launches``: argv and environment of each service, where they are known."""
    return {
        "schema": 1,
        "deployment": plan.deployment,
        "services": [_service(service, *launches.get(service.name, ((), {}))) for service in plan.services],
        "ledger": [_line(line) for line in plan.ledger],
        "notes": list(plan.notes),
    }


def _service(service: ServicePlan, argv: Sequence[str], env: Mapping[str, str]) -> dict[str, Any]:
    return {
        "name": service.name,
        "runtime": service.runtime,
        "gpus": [
            {
                "uuid": device.uuid,
                "index": device.index,
                "budget_mib": None if device.budget_bytes is None else _mib(device.budget_bytes),
            }
            for device in service.devices
        ],
        "cpus": format_cpu_list(service.cpus),
        "numa_nodes": list(service.numa_nodes),
        "memory_bind": None if service.memory_bind is None else list(service.memory_bind),
        "port": service.port,
        "wave": service.wave,
        "after": list(service.after),
        "argv": masked_argv(argv, env),
        "env": masked_env(env),
        "kv": None if service.kv is None else asdict(service.kv),
        "notes": list(service.notes),
    }


def _line(line: LedgerLine) -> dict[str, Any]:
    """Whole MiB that add up: held is rounded up, the total down, and free is what remains."""
    reserved = [_reservation(reservation) for reservation in line.reserved]
    total = line.total_bytes // MIB
    return {
        "gpu": line.device_uuid,
        "total_mib": total,
        "reserved": reserved,
        "free_mib": total - sum(entry["mib"] for entry in reserved),
    }


def _reservation(reservation: Reservation) -> dict[str, Any]:
    return {"service": reservation.service, "mib": _mib(reservation.size_bytes), "for": reservation.purpose}


def _mib(size_bytes: int) -> int:
    return -(-size_bytes // MIB)
