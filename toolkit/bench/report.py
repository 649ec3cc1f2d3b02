"""What many boots say together: one document, judged against the target of a start. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from toolkit.bench import measures

Boot = Mapping[str, Any]
# The target of a start: see docs/bench.md.
FIRST_TOKEN_P99_MS = 380.0
RESIDENT_JITTER = 0.023
CLIMB_PERCENT_PER_S = 14.7
# What that climb means for 80%, which is gated in its place: the driver refreshes utilisation too rarely.
TO_80_PERCENT_S = 80 / CLIMB_PERCENT_PER_S
FIRST_OVER_STEADY = 1.25


def document(deployment: str, boots: Mapping[Any, Sequence[Boot]], asked: Mapping[Any, int]) -> dict[str, Any]:
    """The document of ``bench cold-start --json``. ``boots`` and ``asked`` by condition: cold, warm, none, single."""
    found = {name: _condition(made) for name, made in boots.items() if made}
    judged = found.get("full") or next(iter(found.values()), None)
    targets = list(_targets(judged["services"])) if judged else []
    return {
        "schema": 1,
        "deployment": deployment,
        "conditions": [{"name": name, "asked": asked.get(name, 0), **found[name]} for name in found],
        "without_warmup": list(_three_rows(found)),
        "targets": targets,
        "pass": all(target["pass"] is not False for target in targets),
        "notes": list(_notes(found)),
    }


def _condition(made: Sequence[Boot]) -> dict[str, Any]:
    names = [service["name"] for service in made[0]["services"]]
    seen = {name: [_named(boot, name) for boot in made] for name in names}
    return {
        "boots": len(made),
        "seconds": statistics.median(boot["seconds"] for boot in made),
        "services": [_service(name, seen[name]) for name in names],
    }


def _named(boot: Boot, name: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = next(service for service in boot["services"] if service["name"] == name)
    return found


def _service(name: str, seen: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    firsts = _known(each["first_token_ms"]["first"] for each in seen)
    loads = [each["load"] for each in seen if each["load"]]
    return {
        "name": name,
        "gpus": seen[0]["gpus"],
        "attempts": [each["attempts"] for each in seen],
        "stages": _stages(seen),
        "parts": _parts(seen),
        "first_token_ms": {
            "first": firsts[0] if firsts else None,
            "p50": measures.percentile(firsts, 0.5),
            "p90": measures.percentile(firsts, 0.9),
            "p99": measures.percentile(firsts, 0.99),
            "worst": max(firsts, default=None),
        },
        "steady_ms": _median(each["first_token_ms"]["p50"] for each in seen),
        "first_over_steady": _median(_ratio(each["first_token_ms"]) for each in seen),
        "proof_ms": list(seen[-1]["proof_ms"]),
        "late_compiles": _sum(each["late_compiles"] for each in seen),
        "canaries_right": sum(each["canary_ok"] is True for each in seen),
        "resident_mib": _median(each["resident_mib"] for each in seen),
        "resident_jitter": _median(each["resident_jitter"] for each in seen),
        "gpu_climb_percent_per_s": _median(each["gpu_climb_percent_per_s"] for each in seen),
        "load": _load(loads),
    }


def _stages(seen: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    states = dict.fromkeys(stage["state"] for each in seen for stage in each["stages"])
    return {state: statistics.median(_seconds(each, state) for each in seen) for state in states}


def _seconds(service: Mapping[str, Any], state: str) -> float:
    return float(sum(stage["seconds"] for stage in service["stages"] if stage["state"] == state))


def _parts(seen: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    told = [stage["parts"] for each in seen for stage in each["stages"] if stage["state"] == "PRELOAD"]
    names = dict.fromkeys(name for parts in told for name in parts)
    return {name: _median(parts.get(name) for parts in told) for name in names}


def _load(loads: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    if not loads:
        return None
    return {
        "unit": loads[0]["unit"],
        "per_s": _median(each["per_s"] for each in loads),
        "to_80_percent_s": _median(each["to_80_percent_s"] for each in loads),
        "failed": sum(each["failed"] for each in loads),
        "refused": sum(each["refused"] for each in loads),
    }


def _three_rows(found: Mapping[str, Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """First token after READY without warm-up, after a single request, and after the whole: a row per service."""
    modes = [mode for mode in ("none", "single", "full") if mode in found]
    for mode in modes if len(modes) > 1 else ():
        for service in found[mode]["services"]:
            times = service["first_token_ms"]
            yield {
                "warmup": mode,
                "service": service["name"],
                "first_p50_ms": times["p50"],
                "first_worst_ms": times["worst"],
                "steady_ms": service["steady_ms"],
                "first_over_steady": service["first_over_steady"],
            }


def _targets(services: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    for service in services:
        name, on_gpu = service["name"], service["gpus"] > 0
        times, load = service["first_token_ms"], service["load"]
        p99 = times["p99"] if times["p99"] is not None else times["worst"]
        yield _target("first_token_p99_ms", name, p99, FIRST_TOKEN_P99_MS, gated=on_gpu)
        yield _target("first_over_steady", name, service["first_over_steady"], FIRST_OVER_STEADY)
        yield _target("late_compiles", name, service["late_compiles"], 0)
        yield _target("resident_jitter", name, service["resident_jitter"], RESIDENT_JITTER)
        yield _target("to_80_percent_s", name, load["to_80_percent_s"] if load else None, TO_80_PERCENT_S)
        yield _target("failed_requests", name, load["failed"] if load else None, 0)


def _target(id_: str, service: str, measured: float | None, most: float, *, gated: bool = True) -> dict[str, Any]:
    passed = None if measured is None or not gated else measured <= most
    return {"id": id_, "service": service, "measured": measured, "at_most": round(most, 3), "pass": passed}


def _notes(found: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    for name, condition in found.items():
        for service in condition["services"]:
            if again := sum(number > 1 for number in service["attempts"]):
                yield f"'{service['name']}' began more than once in {again} of {condition['boots']} boots ({name})"
    boots = max((each["boots"] for each in found.values()), default=0)
    if boots < measures.P99_NEEDS:
        yield f"P99 of first tokens needs {measures.P99_NEEDS} boots: of {boots}, the worst stands for it"
    if not any(service["gpus"] for each in found.values() for service in each["services"]):
        yield "no service has a GPU: the first-token target is for GPUs, so it is shown and not judged"


def _ratio(times: Mapping[str, float | None]) -> float | None:
    first, steady = times["first"], times["p50"]
    return first / steady if first and steady else None


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _median(values: Iterable[float | None]) -> float | None:
    known = _known(values)
    return statistics.median(known) if known else None


def _sum(values: Iterable[int | None]) -> int | None:
    """Of all; None when one is not known."""
    found = list(values)
    known = [value for value in found if value is not None]
    return sum(known) if len(known) == len(found) else None
