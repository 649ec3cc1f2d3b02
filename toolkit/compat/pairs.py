"""How close two may be: packages of one environment, or services and environments of one host."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from toolkit.compat.gpus import unsupported
from toolkit.compat.model import Case, Closest, EnvironmentView, Finding, Hit, Pair, Role, named, sm_of
from toolkit.compat.packages import clashes
from toolkit.compat.releases import found_version, lacking_wheels, missing_fact, wheels_of
from toolkit.facts import Facts, FlashRow, Release
from toolkit.facts.model import Closeness, specifier, version, within

LAST_MINOR = 9  # releases of one torch minor that ranges are tried with


@dataclass(frozen=True)
class Sharing:
    """Whether one environment can hold both: yes, after a build from source, no, or no source tells."""

    answer: Literal["yes", "build", "no", "unknown"]
    why: str
    sources: tuple[str, ...] = ()


def sharing(case: Case, view: EnvironmentView, release: Release | None, row: FlashRow | None) -> Sharing:
    """Whether one environment can hold a TensorRT-LLM and a flash-attn release, by the torch both need."""
    if release is None or row is None:
        return Sharing("unknown", "no source was read for one of the two releases")
    torch, given = release.fact("torch"), view.packages.get("torch")
    sources = (*(torch.source if torch else ()), *row.source)
    if row.jit:
        return _compiled_later(release, row, view.packages.get(row.package), sources)
    if torch is None:
        return Sharing("unknown", "no source says which torch this TensorRT-LLM accepts", row.source)
    if given:
        return _with_torch(case, view, torch.ranges, row, given, sources)
    if row.torch and all(within(each, row.torch) is False for each in _in_range(torch.ranges)):
        return Sharing("no", f"TensorRT-LLM accepts torch {torch}, this flash-attn needs {row.torch}", sources)
    if row.prebuilt:
        return Sharing("yes", f"TensorRT-LLM accepts torch {torch}, wheels are made for torch {row.torch}", sources)
    fitting = [each for each in row.wheel_torch if _minor_in(each, torch.ranges)]
    if fitting:
        why = f"TensorRT-LLM accepts torch {torch}, and wheels exist for torch {', '.join(fitting)}"
        return Sharing("yes", why, sources)
    return Sharing("build", f"TensorRT-LLM accepts torch {torch}; wheels are for {wheels_of(row)}", sources)


def _compiled_later(release: Release, row: FlashRow, found: str | None, sources: tuple[str, ...]) -> Sharing:
    """flash-attn-4 shares no binary interface; what can keep it out are pins, of itself or of nvidia-cutlass-dsl."""
    own = release.fact("flash_attn_4")
    if own and (own.accepts(found) is False or within(str(own.value).removeprefix("=="), row.versions) is False):
        return Sharing("no", f"TensorRT-LLM pins flash-attn-4{own.value}", (*own.source, *row.source))
    pin = release.fact("cutlass_dsl")
    pinned = str(pin.value).removeprefix("==") if pin else None
    if pin and row.cutlass_dsl and within(pinned, row.cutlass_dsl) is False:
        why = f"TensorRT-LLM pins nvidia-cutlass-dsl {pinned}, this flash-attn-4 needs {row.cutlass_dsl}"
        return Sharing("no", why, (*pin.source, *row.source))
    why = "flash-attn-4 is pure Python, is compiled at run time and names no torch, so no C++ ABI is shared"
    return Sharing("yes", why, sources)


def _in_range(ranges: tuple[str, ...]) -> list[str]:
    """Versions that a range names at its ends, as far as they are in it."""
    ends = [each.version for text in ranges for each in specifier(text) or ()]
    ends_and_bases = dict.fromkeys([*ends, *(str(known.base_version) for end in ends if (known := version(end)))])
    return [end for end in ends_and_bases if within(end, ranges)]


def _with_torch(  # noqa: PLR0917
    case: Case, view: EnvironmentView, ranges: tuple[str, ...], row: FlashRow, torch: str, sources: tuple[str, ...]
) -> Sharing:
    if within(torch, ranges) is False:
        return Sharing("no", f"this TensorRT-LLM accepts torch {' or '.join(ranges)}, not {torch}", sources)
    if row.torch and within(torch, row.torch) is False:
        return Sharing("no", f"this flash-attn needs torch {row.torch}, not {torch}", sources)
    lacks = lacking_wheels(case, view, row) if view.hypothetical else []
    if lacks:
        return Sharing("build", f"no prebuilt wheel fits {' and '.join(lacks)}", sources)
    return Sharing("yes", f"both accept torch {torch}", sources)


def _minor_in(minor: str, ranges: tuple[str, ...]) -> bool:
    return any(within(f"{minor}.{patch}", ranges) for patch in range(LAST_MINOR + 1))


def of_packages(case: Case) -> Iterator[Pair]:
    """TensorRT-LLM with each flash-attn of the same environment."""
    for view in case.environments.values():
        for package in view.flash_packages if view.has("tensorrt-llm") else ():
            yield _package_pair(case, view, package)


def _package_pair(case: Case, view: EnvironmentView, package: str) -> Pair:
    release = case.facts.trtllm(view.packages["tensorrt-llm"])
    row = case.facts.flash_attn(package, view.packages[package])
    found = sharing(case, view, release, row)
    closest, needs = _closest(found)
    blocked = _nowhere(case, view, release, row)
    if blocked:
        closest, needs = "apart", ()
    why = blocked or f"{found.why}. {_told(case.facts)}"
    sources = tuple(dict.fromkeys((*found.sources, *closeness(case.facts, "same-process").source)))
    return Pair("tensorrt-llm", package, closest, needs, why, case.facts.cite(sources))


def _closest(found: Sharing) -> tuple[Closest, tuple[str, ...]]:
    if found.answer == "yes":
        return "same-env", ()
    if found.answer == "build":
        return "same-env", ("source_build",)
    return "same-gpu", ("separate_environments", "memory_budgets")


def _nowhere(case: Case, view: EnvironmentView, release: Release | None, row: FlashRow | None) -> str | None:
    """Why one of the two runs on none of the GPUs here."""
    gpus = case.gpus_of(view.name)
    known = [sm for gpu in gpus if (sm := sm_of(gpu)) is not None]
    if not known or len(known) < len(gpus):
        return None
    if release and all(unsupported(case, release, sm) for sm in known):
        return f"TensorRT-LLM {release.name} does not run on {named(gpus)}: {unsupported(case, release, known[0])}"
    if row and all(row.runs_on(sm) is False for sm in known):
        return f"{row.package} {row.name} does not run on {named(gpus)}: {row.note or 'its README names others'}"
    return None


def closeness(facts: Facts, name: str) -> Closeness:
    """What the facts say of fused attention when the two are this close."""
    return next(row for row in facts.closeness if row.level == name)


def _told(facts: Facts) -> str:
    process = closeness(facts, "same-process")
    return (
        "Built-in fused attention need not be off in one environment, on one GPU or on one host; "
        f"in one process it is unknown: {process.why}"
    )


def notes(case: Case) -> Iterator[Hit]:
    """What the facts say of fused attention, by closeness, and of sentences people quote."""
    for one, package, other in _attention_pairs(case):
        found = one.packages["tensorrt-llm"]
        release = case.facts.trtllm(found)
        lines = [f"{row.level}: {_need(row)}: {row.why}" for row in case.facts.closeness]
        modes = release.fact("modes") if release else None
        if modes and "engine" not in modes.value:
            lines.append("this release has the PyTorch mode alone, where no switch turns fused attention off")
        sources = tuple(dict.fromkeys(key for row in case.facts.closeness for key in row.source))
        subject = f"tensorrt-llm and {package}"
        yield Hit("fused-attention-need", subject, one.name, {"b": package}, tuple(lines), sources=sources)
        if package == "flash-attn":
            yield from _claims(case, one, found, other.packages[package])


def _need(row: Closeness) -> str:
    return {"no": "need not be off", "unknown": "unknown"}[row.fmha_off]


def _attention_pairs(case: Case) -> Iterator[tuple[EnvironmentView, str, EnvironmentView]]:
    for one in case.environments.values():
        for other in case.environments.values() if one.has("tensorrt-llm") else ():
            for package in other.flash_packages:
                yield one, package, other


def _claims(case: Case, view: EnvironmentView, trtllm: str | None, flash: str | None) -> Iterator[Hit]:
    for claim in case.facts.claims:
        if within(trtllm, claim.tensorrt_llm) and within(flash, claim.flash_attn):
            lines = (*(f"supported: {text}" for text in claim.supported), *(f"unknown: {t}" for t in claim.unknown))
            values = {"a_version": trtllm, "b_version": flash, "claim": claim.claim}
            yield Hit("quoted-claim", "tensorrt-llm and flash-attn", view.name, values, lines, sources=claim.source)


def shared_torch(case: Case) -> Iterator[Hit]:
    """What stands between the two when no torch is named: a build from source, or a fact that no source tells."""
    for view in case.environments.values():
        if not view.hypothetical or not view.has("tensorrt-llm"):
            continue
        release = case.facts.trtllm(view.packages["tensorrt-llm"])
        for package in view.flash_packages:
            row = case.facts.flash_attn(package, view.packages[package])
            if view.packages.get("torch") and not (row and row.jit):  # judged by the torch that is named
                continue
            found = sharing(case, view, release, row)
            if found.answer == "unknown" and release and row:
                yield missing_fact(view, release, "torch")
            if found.answer == "no":
                yield _excluded(view, package, found)
            if found.answer == "build" and release and row:
                values = {"package": package, "release": row.name, "wheels": wheels_of(row), "note": row.note or ""}
                values["missing"] = f"the torch of TensorRT-LLM {release.name} ({release.fact('torch')})"
                yield Hit("flash-attn-no-wheel", package, view.name, values, sources=found.sources)


def _excluded(view: EnvironmentView, package: str, found: Sharing) -> Hit:
    values = {"required_by": f"{package} {view.packages[package]}", "requirement": package, "found": found.why}
    return Hit("dependency-conflict", package, view.name, values, sources=found.sources)


def unsure(case: Case) -> Iterator[Hit]:
    """Facts behind an answer about versions that come from elsewhere than the release itself."""
    for view in case.environments.values():
        release = case.facts.trtllm(view.packages.get("tensorrt-llm")) if view.hypothetical else None
        names = ("torch", "python", "tensorrt", "cuda", "sm", "abi")
        weak = [(name, fact) for name in names if release and (fact := release.fact(name)) and not fact.firm]
        if weak:
            lines = tuple(f"{name}: {fact} ({fact.status})" for name, fact in weak)
            sources = tuple(dict.fromkeys(key for _, fact in weak for key in fact.source))
            yield Hit("unsure-facts", "tensorrt-llm", view.name, evidence=lines, sources=sources)


def of_roles(case: Case, findings: tuple[Finding, ...]) -> Iterator[Pair]:
    """Every two services; where there is no deployment, every two environments."""
    for one, other in itertools.combinations(case.roles, 2):
        yield _role_pair(case, one, other, findings)


def _role_pair(case: Case, one: Role, other: Role, findings: tuple[Finding, ...]) -> Pair:
    stopped = _stopped(one, findings) or _stopped(other, findings)
    if stopped:
        return Pair(one.name, other.name, "apart", (), f"{stopped.subject}: {stopped.what}", stopped.source)
    views = [case.environments.get(role.environment) for role in (one, other)]
    first, second = views
    if one.environment == other.environment:
        return Pair(
            one.name, other.name, "same-env", _budgets(one, other), "They run in one environment.", "the deployment"
        )
    if first is None or second is None or not (_was_read(first) and _was_read(second)):
        return Pair(one.name, other.name, "same-host", (), "Their environments were not read.", "coexist host --record")
    found = _apart_by(first, second)
    if not found:
        why = "Nothing in their requirements keeps them from sharing an environment; processes of their own are safer."
        return Pair(one.name, other.name, "same-env", _budgets(one, other), why, "Requires-Dist of both")
    closest, reason = _device(case, one, other)
    needs = ("separate_environments", *_budgets(one, other))
    return Pair(one.name, other.name, closest, needs, f"{found}. {reason}", "Requires-Dist and files of both")


def _was_read(view: EnvironmentView) -> bool:
    return view.read and all(problem.kind != "interpreter_is_script" for problem in view.problems)


def _stopped(role: Role, findings: tuple[Finding, ...]) -> Finding | None:
    """What keeps a role from running here, if anything."""
    mine = (f for f in findings if f.effect == "blocks")
    return next((f for f in mine if role.name == f.subject or role.environment == f.environment), None)


def _apart_by(one: EnvironmentView, other: EnvironmentView) -> str | None:
    """Why two environments cannot be one; None: nothing says so."""
    found = clashes(one, other)
    if found:
        return f"They need environments of their own: {found[0]}"
    torches = [found_version(view, "torch") or view.torch for view in (one, other)]
    if None not in torches and torches[0] != torches[1]:
        return f"They need environments of their own: torch {torches[0]} and torch {torches[1]}"
    return None


def _device(case: Case, one: Role, other: Role) -> tuple[Closest, str]:
    """How close two processes may be on the GPUs they may get."""
    common = {gpu.uuid for gpu in one.gpus} & {gpu.uuid for gpu in other.gpus}
    gpus = [gpu for gpu in one.gpus if gpu.uuid in common]
    if not gpus:
        return "same-host", "No GPU is open to both."
    if all((gpu.compute_mode or "").startswith("Exclusive") for gpu in gpus):
        return "same-host", "The GPUs are in exclusive compute mode, so each takes one process."
    return "same-gpu", closeness(case.facts, "same-gpu").why


def _budgets(one: Role, other: Role) -> tuple[str, ...]:
    """Budgets are needed where both may be on one GPU and one of them has none."""
    services = [role.service for role in (one, other)]
    share = all(service is None or service.gpus.share for service in services) and one.gpus and other.gpus
    told = all(service is not None and service.gpu_memory is not None for service in services)
    return ("memory_budgets",) if share and not told else ()
