"""A refusal in words: which resource, how much, who holds it, what to do."""

from __future__ import annotations

from typing import Any

from toolkit.errors import ToolkitError
from toolkit.reserve.model import Conflict, Grant, Refusal
from toolkit.units import MIB, format_bytes

_MEMORY = ("gpu_memory", "numa_memory")


def error(refusal: Refusal) -> ToolkitError:
    """The error of a refusal; ``needed`` and ``available`` are MiB for memory, counts otherwise."""
    first = refusal.conflicts[0]
    return ToolkitError(
        "; ".join(_sentence(conflict) for conflict in refusal.conflicts),
        f"services.{refusal.service}" if refusal.service else None,
        _hint(first),
        code="reservation",
        services=[refusal.service] if refusal.service else [],
        conflicts=[_document(conflict) for conflict in refusal.conflicts],
        **_document(first),
    )


def _sentence(conflict: Conflict) -> str:
    who = ", ".join(dict.fromkeys(_name(grant) for grant in conflict.holders))
    if conflict.resource in _MEMORY:
        place = conflict.subject if conflict.resource == "gpu_memory" else f"NUMA {conflict.subject}"
        missing_bytes = conflict.needed - conflict.available
        amount = f"{format_bytes(conflict.needed)} needed, {format_bytes(conflict.available)} free"
        return f"{place}: {amount}, {format_bytes(missing_bytes)} missing" + (f"; held by {who}" if who else "")
    noun = {"gpus": "GPU", "cpus": "CPUs", "port": "port"}[conflict.resource]
    return f"{noun} {conflict.subject} held by {who}"


def _name(grant: Grant) -> str:
    service = f", service '{grant.service}'" if grant.service else ""
    return f"deployment '{grant.owner.deployment}' (pid {grant.owner.pid}{service})"


def _hint(conflict: Conflict) -> str:
    if not conflict.holders:
        return "Ask for less, or free what other processes hold; see 'coexist host'."
    deployment = conflict.holders[0].owner.deployment
    option = f"--deployment {deployment}"
    return f"See 'coexist status {option}'; 'coexist down {option}' stops it. Or ask for something else."


def _document(conflict: Conflict) -> dict[str, Any]:
    memory = conflict.resource in _MEMORY
    holders = [
        {"deployment": grant.owner.deployment, "pid": grant.owner.pid, "service": grant.service}
        for grant in conflict.holders
    ]
    return {
        "resource": conflict.resource,
        "subject": conflict.subject,
        "needed": -(-conflict.needed // MIB) if memory else conflict.needed,
        "available": conflict.available // MIB if memory else conflict.available,
        "holder": holders[0] if holders else None,
        "holders": holders,
    }
