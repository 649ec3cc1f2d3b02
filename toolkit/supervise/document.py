"""The status document of ``coexist status --json``: pure, from instances to JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from toolkit.supervise import gates, stage_parts
from toolkit.supervise.clock import Calendar
from toolkit.supervise.gates import Gate, Instances
from toolkit.supervise.lifecycle import INIT, PRIME, SERVING, FailureRecord, Instance, StageTime
from toolkit.supervise.placement import Foreign, OverBudget, Placement
from toolkit.supervise.service import ServiceRun
from toolkit.units import MIB, format_cpu_list, format_duration
from toolkit.warm.model import PARTS, CanaryResult


def status(
    deployment: str,
    runs: Sequence[ServiceRun],
    instances: Instances,
    *,
    now_s: float,
    calendar: Calendar,
    address: str | None = None,
    activity: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """The whole document; ``starting`` is of one that has no supervisor yet.

    ``address``: where the control API listens; ``activity``: what services that start do now.
    """
    does = activity or {}
    return {
        "schema": 1,
        "deployment": deployment,
        "control": address,
        "starting": None,
        "ready": gates.all_ready([run.gate() for run in runs], instances),
        "services": [_service(run, instances[run.name], now_s, calendar, does.get(run.name)) for run in runs],
    }


def _service(
    run: ServiceRun, instance: Instance, now_s: float, calendar: Calendar, activity: str | None
) -> dict[str, Any]:
    return {
        "name": run.name,
        "state": instance.state.value,
        "activity": activity,
        "attempt": instance.attempt,
        "pid": instance.pid,
        "port": run.port,
        "ready_at": calendar.iso(instance.ready_s) if instance.ready_s is not None else None,
        "windows_s": {stage: round(length_s, 1) for stage, length_s in instance.windows_s.items()},
        "stages": [_stage(stage, instance, now_s) for stage in instance.stages],
        "first_token_ms": _first_token_ms(instance),
        "canary": _canary(instance),
        "proof": _proof(instance),
        "late_compiles": instance.late_compiles,
        "late_compiled": _late(instance),
        "placement": _placement(instance.placement),
        "gpus": [dict(gpu) for gpu in run.gpus],
        "cpus": format_cpu_list(run.cpus),
        "restarts": instance.restarts,
        "last_failure": _last_failure(instance.last_failure, calendar),
    }


def _stage(stage: StageTime, instance: Instance, now_s: float) -> dict[str, Any]:
    left_s = now_s if stage.left_s is None else stage.left_s
    mine = [part for part in stage_parts.of(instance) if part.stage is stage.state]
    parts = {part.name: part.seconds for part in mine if part.name != stage_parts.ALL}
    return {
        "state": stage.state.value,
        "seconds": round(left_s - stage.entered_s, 4),
        "parts": {**dict.fromkeys(PARTS), **parts},
        "memory_bytes": {part.name: {"host": part.host_bytes, "gpu": part.gpu_bytes} for part in mine},
    }


def _first_token_ms(instance: Instance) -> dict[str, float | None]:
    proof, first = instance.proof, instance.first
    p50_ms = proof.p50_ms if proof else None
    p99_ms = proof.p99_ms if proof else None
    if first is None:
        return {"first": None, "p50": p50_ms, "p99": p99_ms}
    return {
        "first": first.ms,
        "p50": p50_ms if first.p50_ms is None else first.p50_ms,
        "p99": p99_ms if first.p99_ms is None else first.p99_ms,
    }


def _proof(instance: Instance) -> dict[str, Any] | None:
    """What was measured on the way to READY; null before. First tokens in the order they were asked for.

    ``reason``: why it failed, in one line; null when it did not.
    """
    proof = instance.proof
    if proof is None:
        return _failed_proof(instance)
    covered = proof.coverage
    return {
        "first_token_ms": [round(ms, 3) for ms in proof.first_token_ms],
        "compile_events": proof.compile_events,
        "keys": len(proof.keys),
        "keys_total": covered.total,
        "keys_left": list(covered.left),
        "unknown": list(covered.unknown),
        "compiles": proof.compiles.document(),
        "reason": None,
    }


def _failed_proof(instance: Instance) -> dict[str, Any] | None:
    """Of the attempt whose PRIME failed last; null while a new one has not come as far."""
    record = instance.last_failure
    if record is None or record.state is not PRIME or instance.state is SERVING:
        return None
    return {
        "first_token_ms": list(record.failure.first_token_ms),
        "compile_events": None,
        "keys": 0,
        "keys_total": None,
        "keys_left": [],
        "unknown": [],
        "compiles": {},
        "reason": record.failure.summary,
    }


def _late(instance: Instance) -> list[dict[str, Any]]:
    return [{"channel": each.channel, "key": each.key, "count": each.count} for each in instance.late]


def _canary(instance: Instance) -> dict[str, Any]:
    found = instance.proof.canary if instance.proof else _failed_canary(instance)
    if found is None:
        return {"ok": None, "expected": None, "got": None}
    return {"ok": found.ok, "expected": found.expected, "got": found.got}


def _placement(found: Placement | None) -> dict[str, Any] | None:
    """Null until the first look, which comes with SERVING."""
    if found is None:
        return None
    threads, pages = found.threads, found.pages
    return {
        "threads": threads.threads,
        "on_plan_percent": threads.on_plan_percent,
        "drifting": [
            {"pid": each.pid, "tid": each.tid, "name": each.name, "cpus": format_cpu_list(each.cpus)}
            for each in threads.drifting
        ],
        "unseen_pids": list(threads.unseen),
        "bytes_by_node": {str(node): size for node, size in pages.bytes_by_node.items()} or None,
        "memory_on_plan_percent": pages.on_plan_percent,
        "foreign": [_foreign(each) for each in found.foreign],
        "over_budget": [_over_budget(each) for each in found.over_budget],
        "drift": list(found.drift.values()),
        "not_measurable": list(found.not_measurable),
    }


def _foreign(found: Foreign) -> dict[str, Any]:
    holder = found.holder
    used_mib = None if holder.used_bytes is None else -(-holder.used_bytes // MIB)
    return {"gpu": found.uuid, "pid": holder.pid, "name": holder.name, "used_mib": used_mib, "ours": found.ours}


def _over_budget(found: OverBudget) -> dict[str, Any]:
    return {"gpu": found.uuid, "used_mib": -(-found.used_bytes // MIB), "allowed_mib": found.allowed_bytes // MIB}


def _failed_canary(instance: Instance) -> CanaryResult | None:
    record = instance.last_failure
    return record.failure.canary if record and record.attempt == instance.attempt else None


def _last_failure(record: FailureRecord | None, calendar: Calendar) -> dict[str, Any] | None:
    if record is None:
        return None
    failure = record.failure
    return {
        "class": failure.kind,
        "verdict": failure.verdict,
        "summary": failure.summary,
        "culprit": failure.culprit,
        "line": failure.line,
        "advice": failure.advice,
        "attempt": record.attempt,
        "state": record.state.value,
        "at": calendar.iso(record.at_s),
    }


def readiness(name: str, all_gates: Sequence[Gate], instances: Instances) -> dict[str, Any]:
    """The answer of ``/readyz/SERVICE``."""
    state = instances[name].state.value
    return {"ready": gates.is_ready(name, all_gates, instances), "state": state}


def not_ready(
    all_gates: Sequence[Gate], instances: Instances, activity: Mapping[str, str], now_s: float
) -> tuple[str, ...]:
    """One sentence for each required service that is not ready: where it stands, and why."""
    waiting = [gate for gate in all_gates if gate.required and not gates.is_ready(gate.name, all_gates, instances)]
    return tuple(_stands(gate, all_gates, instances, activity.get(gate.name), now_s) for gate in waiting)


def _stands(gate: Gate, all_gates: Sequence[Gate], instances: Instances, activity: str | None, now_s: float) -> str:
    instance = instances[gate.name]
    others = gates.waiting_for(gate.name, all_gates, instances)
    if others:
        return f"'{gate.name}' waits for {_names(others)}"
    if instance.state is SERVING:
        missing = [name for name in gate.requires if instances[name].state is not SERVING]
        return f"'{gate.name}' requires {_names(missing)}"
    since = f"'{gate.name}' is in {instance.state.value} for {format_duration(now_s - instance.since_s)}"
    reason = _reason(instance, activity)
    return f"{since}: {reason}" if reason else since


def _reason(instance: Instance, activity: str | None) -> str | None:
    record = instance.last_failure
    if instance.begun or instance.state is INIT or record is None:
        return activity
    return record.failure.summary


def _names(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)
