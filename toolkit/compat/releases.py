"""Rules about releases: what TensorRT-LLM and flash-attn accept, by the tables."""

from __future__ import annotations

from collections.abc import Iterator

from toolkit.compat.model import Case, EnvironmentView, Hit
from toolkit.facts import Fact, FlashRow, Release
from toolkit.facts.model import minor, nvidia_build, version, within

TENSORRT = ("tensorrt", "tensorrt-cu12", "tensorrt-cu13")
NEVER_TOLD = ("vllm", "sglang")
PLAIN = ("torch", "python", "tensorrt", "transformers")


def trtllm(case: Case) -> Iterator[Hit]:
    """Versions that the installed TensorRT-LLM does not accept, and what no source says of it."""
    for view in case.environments.values():
        if not view.has("tensorrt-llm"):
            continue
        release = case.facts.trtllm(view.packages["tensorrt-llm"])
        if release is None:
            yield _unknown_release(view)
            continue
        for name in PLAIN:
            yield from _judged(view, release, name)
        yield from _cuda(view, release)
        yield from _abi_differs(case, view, release)


def _unknown_release(view: EnvironmentView) -> Hit:
    found = view.packages["tensorrt-llm"] or "of an unknown version"
    return Hit(
        "trtllm-release-unknown",
        "tensorrt-llm",
        view.name,
        {"release": found},
        severity=None if view.hypothetical else "note",
        effect=None if view.hypothetical else "none",
    )


def found_version(view: EnvironmentView, name: str) -> str | None:
    """The version of what a fact speaks of in an environment; None: not there, or not told."""
    if name == "python":
        return view.python
    if name == "tensorrt":
        return next((view.packages[each] for each in TENSORRT if view.packages.get(each)), None)
    return view.packages.get(name)


def _judged(view: EnvironmentView, release: Release, name: str) -> Iterator[Hit]:
    """The refusal, if any. In an image TensorRT-LLM is built for the image's torch, a pre-release by its number."""
    found, fact = found_version(view, name), release.fact(name)
    if found is None:
        return
    if fact is None:
        if view.hypothetical:
            yield missing_fact(view, release, name)
        return
    if fact.accepts(found) is False and not (view.image and fact.accepts(nvidia_build(found))):
        yield _refused(view, f"trtllm-{name}", release, fact, found)


def missing_fact(view: EnvironmentView, release: Release, name: str) -> Hit:
    """Says that no source tells a fact of a release."""
    base = release.fact("base_image")
    note = f"Its container is made from {base}." if base else ""
    values = {"missing": name, "release": view.packages.get("tensorrt-llm") or release.name, "note": note}
    return Hit("trtllm-fact-unknown", "tensorrt-llm", view.name, values)


def _refused(view: EnvironmentView, rule: str, release: Release, fact: Fact, found: str) -> Hit:
    values = {
        "release": view.packages["tensorrt-llm"] or release.name,
        "range": str(fact),
        "found": found,
        "note": f"{fact.note}." if fact.note else "",
    }
    # Installed for a Python without wheels, it was built from source: whether that works, no source says.
    soft = not fact.firm or (rule == "trtllm-python" and not view.hypothetical)
    return Hit(
        rule,
        "tensorrt-llm",
        view.name,
        values,
        (f"{rule.removeprefix('trtllm-')} {fact} ({fact.status})",),
        severity="warning" if soft else None,
        effect="unknown" if soft else None,
        sources=fact.source,
    )


def _cuda(view: EnvironmentView, release: Release) -> Iterator[Hit]:
    fact = release.fact("cuda")
    if view.torch_cuda is None:
        return
    if fact is None:
        if view.hypothetical:
            yield missing_fact(view, release, "CUDA")
        return
    built, here = version(str(fact.value)), version(view.torch_cuda)
    if built and here and built.major != here.major:
        yield _refused(view, "trtllm-cuda", release, fact, view.torch_cuda)


def _abi_differs(case: Case, view: EnvironmentView, release: Release) -> Iterator[Hit]:
    """A wheel of one C++ ABI beside a torch of the other; where files were read, their symbols decide."""
    fact = release.fact("abi")
    torch = view.torch_abi or _abi(case, view.packages.get("torch"), view.torch_cuda)
    if fact and torch and view.hypothetical and fact.value != torch:
        yield _refused(view, "trtllm-abi", release, fact, torch)


def engine_mode(case: Case) -> Iterator[Hit]:
    """A service that serves an engine with a release that has no engines any more."""
    for role in case.roles:
        service, view = role.service, case.environments.get(role.environment)
        if service is None or service.engine is None or service.runtime not in {"trtllm", "triton"} or view is None:
            continue
        release = case.facts.trtllm(view.packages.get("tensorrt-llm"))
        modes = release.fact("modes") if release else None
        if modes and "engine" not in modes.value:
            values = {"release": view.packages["tensorrt-llm"], "note": modes.note or ""}
            yield Hit("engine-mode-removed", role.name, view.name, values, sources=modes.source)


def fmha_switch(case: Case) -> Iterator[Hit]:
    """A service without an engine that asks for what only the build of an engine can do."""
    for role in case.roles:
        service = role.service
        if service and service.runtime == "trtllm" and service.engine is None and service.fmha == "disable":
            yield Hit("fmha-switch-missing", role.name, role.environment)


def flash_attn(case: Case) -> Iterator[Hit]:
    """What flash-attn releases need, and whether a prebuilt wheel fits; where files were read, those decide."""
    for view in case.environments.values():
        for package in view.flash_packages:
            row = case.facts.flash_attn(package, view.packages[package])
            if row is None:
                yield _unknown_flash(view, package)
                continue
            yield from _requirements(view, row)
            if view.hypothetical:
                yield from _no_wheel(case, view, row)


def _unknown_flash(view: EnvironmentView, package: str) -> Hit:
    values = {"package": package, "found": view.packages[package] or "of an unknown version"}
    soft = not view.hypothetical
    return Hit(
        "flash-attn-release-unknown",
        package,
        view.name,
        values,
        severity="note" if soft else None,
        effect="none" if soft else None,
    )


def _requirements(view: EnvironmentView, row: FlashRow) -> Iterator[Hit]:
    asked = [
        ("torch", row.torch, view.packages.get("torch")),
        ("Python", row.python, view.python),
        ("CUDA", row.cuda, view.torch_cuda),
        ("nvidia-cutlass-dsl", row.cutlass_dsl, view.packages.get("nvidia-cutlass-dsl")),
    ]
    for name, wanted, found in asked:
        if wanted and found and within(found, wanted) is False:
            values = {
                "package": row.package,
                "release": row.name,
                "requirement": f"{name} {wanted}",
                "found": f"{name} {found}",
                "note": f"{row.note}." if row.note else "",
            }
            yield Hit("flash-attn-requires", row.package, view.name, values, sources=row.source)


def _no_wheel(case: Case, view: EnvironmentView, row: FlashRow) -> Iterator[Hit]:
    lacks = lacking_wheels(case, view, row)
    if lacks:
        values = {
            "package": row.package,
            "release": row.name,
            "missing": " and ".join(lacks),
            "wheels": wheels_of(row),
            "note": f"{row.note}." if row.note else "",
        }
        yield Hit("flash-attn-no-wheel", row.package, view.name, values, sources=row.source)


def wheels_of(row: FlashRow) -> str:
    """What prebuilt wheels of a flash-attn release are named for, as a text."""
    if not row.wheel_torch:
        return "nothing: none is published"
    cudas = dict.fromkeys(str(minor(each)) for each in row.wheel_cuda)
    return f"torch {', '.join(row.wheel_torch)}, CUDA {' and '.join(cudas)}, Python {', '.join(row.wheel_python)}"


def lacking_wheels(case: Case, view: EnvironmentView, row: FlashRow) -> list[str]:
    """What no prebuilt wheel of a flash-attn release is made for; empty: one fits, or nothing is compiled."""
    torch, found = view.packages.get("torch"), []
    if row.jit:
        return []
    if row.prebuilt is False:
        return ["anything"]
    if torch and row.wheel_torch and minor(torch) not in row.wheel_torch:
        found.append(f"torch {torch}")
    if view.python and row.wheel_python and minor(view.python) not in row.wheel_python:
        found.append(f"Python {view.python}")
    cuda = version(view.torch_cuda)
    if cuda and row.wheel_cuda and str(cuda.major) not in {each.split(".")[0] for each in row.wheel_cuda}:
        found.append(f"CUDA {view.torch_cuda}")
    abi = view.torch_abi or _abi(case, torch, view.torch_cuda)
    if abi and row.wheel_abi and abi not in row.wheel_abi:
        found.append(f"the {abi} C++ ABI")
    return found


def _abi(case: Case, torch: str | None, cuda: str | None) -> str | None:
    row = case.facts.abi_of_torch(torch, cuda)
    return row.abi if row else None


def untold(case: Case) -> Iterator[Hit]:
    """Packages of a what-if of which no table says what they accept: with none, nothing was compared."""
    for view in case.environments.values():
        told = view.has("tensorrt-llm") or view.flash_packages
        for package, found in view.packages.items() if view.hypothetical else ():
            beside = package == "torch" and view.torch_cuda is not None
            if package in NEVER_TOLD or not (told or beside):
                yield Hit("package-facts-unknown", package, view.name, {"package": package, "found": found})


def hidden_flash_attn_4(case: Case) -> Iterator[Hit]:
    """flash-attn 2 and 4 in one environment, where the first hides the second."""
    for view in case.environments.values():
        old = view.packages.get("flash-attn")
        if old and view.has("flash-attn-4") and within(old, case.facts.hides_flash_attn_4.versions):
            source = case.facts.hides_flash_attn_4.source
            yield Hit("flash-attn-2-hides-4", "flash-attn", view.name, {"release": old}, sources=source)


RULES = {
    "trtllm": trtllm,
    "engine-mode-removed": engine_mode,
    "fmha-switch-missing": fmha_switch,
    "flash-attn": flash_attn,
    "package-facts-unknown": untold,
    "flash-attn-2-hides-4": hidden_flash_attn_4,
}
