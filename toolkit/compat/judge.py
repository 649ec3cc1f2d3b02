"""The check itself: every rule over one case, then pairs and the verdict. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from toolkit.compat import binaries, book, engines, files, gpus, machine, packages, pairs, recipes, releases
from toolkit.compat.model import SHOWN_PACKAGES, Case, EnvironmentView, Finding, Hit, Report, Verdict
from toolkit.host.model import Host

RuleFunction = Callable[[Case], Iterator[Hit]]
SEVERITIES = ("error", "warning", "note")
# Worst last: what an effect makes of a verdict.
VERDICTS: tuple[Verdict, ...] = ("runnable", "compatible", "unknown", "incompatible")
BY_EFFECT: Mapping[str, Verdict] = {
    "none": "runnable",
    "step": "compatible",
    "unknown": "unknown",
    "blocks": "incompatible",
}
RULES: tuple[RuleFunction, ...] = (
    *binaries.RULES.values(),
    *packages.RULES.values(),
    *releases.RULES.values(),
    *gpus.RULES.values(),
    *engines.RULES.values(),
    *recipes.RULES.values(),
    *machine.RULES.values(),
    *files.RULES.values(),
    pairs.notes,
    pairs.shared_torch,
    pairs.unsure,
)


def judge(case: Case) -> Report:
    """What the check says of a case."""
    findings = find(case)
    found = (*pairs.of_packages(case), *pairs.of_roles(case, findings))
    return Report(
        verdict=verdict(findings),
        host=host_document(case.host),
        environments={name: environment_document(view) for name, view in case.environments.items()},
        pairs=found,
        findings=findings,
    )


def find(case: Case) -> tuple[Finding, ...]:
    """Every finding, each once, errors first."""
    hits = (hit for rule in RULES for hit in rule(case))
    found = (book.finding(hit, case.facts, case.environments.get(hit.environment or "")) for hit in hits)
    return tuple(sorted(dict.fromkeys(found), key=lambda each: SEVERITIES.index(each.severity)))


def verdict(findings: Iterable[Finding]) -> Verdict:
    """The worst of what the findings' effects make of it."""
    worst = max((VERDICTS.index(BY_EFFECT[each.effect]) for each in findings), default=0)
    return VERDICTS[worst]


def environment_document(view: EnvironmentView) -> dict[str, Any]:
    """An environment in ``check --json``: packages that matter, null where one is not installed."""
    names = dict.fromkeys((*SHOWN_PACKAGES, *(view.packages if view.hypothetical else ())))
    return {
        "executable": view.executable,
        "python": view.python,
        "packages": {name: view.packages.get(name) for name in names},
        "torch_cuda": view.torch_cuda,
        "torch_cxx11_abi": None if view.torch_abi is None else view.torch_abi == "new",
    }


def host_document(host: Host | None) -> dict[str, Any]:
    """The host in ``check --json``: what the check looks at."""
    if host is None:
        return {"hostname": None, "driver_version": None, "cuda_driver_version": None, "gpus": [], "recorded": None}
    return {
        "hostname": host.hostname,
        "driver_version": host.driver_version,
        "cuda_driver_version": host.cuda_driver_version,
        "gpus": [
            {
                "index": gpu.index,
                "uuid": gpu.uuid,
                "name": gpu.name,
                "compute_capability": gpu.compute_capability,
                "memory_bytes": gpu.memory_bytes,
                "mig": None if gpu.mig is None else len(gpu.mig),
            }
            for gpu in host.gpus
        ],
        "recorded": host.recorded,
    }
