"""docs/compatibility.md, from the facts. Pure: ``scripts/generate_compatibility.py`` writes it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from toolkit.compat.book import Rule, rules
from toolkit.compat.matrix import Cell, cells
from toolkit.facts import Fact, Facts, FlashRow, Release

INTRODUCTION = """\
# Compatibility

Made by `scripts/generate_compatibility.py` from the tables in `toolkit/facts/` (version {version}); do not edit.
`coexist check --matrix --json` tells the same with every source written out, `coexist check --versions …` judges
versions of yours, `coexist check --explain ID` a finding. *unknown* means that no source was found; nothing here is
guessed. A value in italics was read elsewhere than in the release itself: in the nearest snapshot, in a branch of its
line, or inferred."""

TOGETHER = """\
Whether one environment can hold both, by what both need: torch, or for flash-attn-4 nvidia-cutlass-dsl. *source build*:
no prebuilt wheel of flash-attn fits, it has to be built from source."""

ANSWERS = {
    "yes": "yes",
    "build": "source build",
    "no": "no",
    "unknown": "unknown",
}
COLUMNS = ("torch", "cuda", "tensorrt", "python", "transformers", "abi", "sm", "modes")


def page(facts: Facts) -> str:
    """The whole page."""
    parts = [
        INTRODUCTION.format(version=facts.version),
        "## TensorRT-LLM",
        _releases(facts),
        "### Notes and conflicts",
        "\n".join(_notes(facts)),
        "## flash-attn",
        _flash(facts),
        "## Both in one environment",
        TOGETHER,
        _matrix(facts),
        "## Does TensorRT-LLM's own fused attention have to be off?",
        _closeness(facts),
        *_claims(facts),
        "## Drivers",
        _drivers(facts),
        "## Findings of the check",
        _rules(rules().values()),
        "## Sources",
        "\n".join(f"- `{key}`: {text}" for key, text in _used(facts)),
    ]
    return "\n\n".join(parts) + "\n"


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    titles = list(head)
    lines = [titles, ["---"] * len(titles), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _releases(facts: Facts) -> str:
    rows = ([release.name, *(_shown(release.fact(name)) for name in COLUMNS)] for release in facts.releases)
    return _table(("release", *COLUMNS), rows)


def _shown(fact: Fact | None) -> str:
    if fact is None:
        return "unknown"
    text = ", ".join(map(str, fact.value)) if isinstance(fact.value, tuple) else str(fact.value)
    return text if fact.firm else f"*{text}*"


def _notes(facts: Facts) -> Iterator[str]:
    for release in facts.releases:
        for name, fact in release.facts.items():
            if fact.note:
                keys = ", ".join(f"`{key}`" for key in fact.source)
                yield f"- {release.name}, {name} ({fact.status}): {fact.note} ({keys})"


def _flash(facts: Facts) -> str:
    head = ("package", "release", "torch", "wheels for torch", "CUDA", "Python", "GPUs", "note")
    return _table(head, (_flash_row(row) for row in facts.flash))


def _flash_row(row: FlashRow) -> list[str]:
    wheels = (
        "none needed" if row.jit else ", ".join(row.wheel_torch) or ("none" if row.prebuilt is False else "unknown")
    )
    return [
        row.package,
        row.name,
        row.torch or "unknown",
        wheels,
        row.cuda or "unknown",
        row.python or "unknown",
        _gpus(row),
        row.note or "",
    ]


def _gpus(row: FlashRow) -> str:
    lowest, highest = (None if sm is None else f"{sm // 10}.{sm % 10}" for sm in row.capability)
    return f"{lowest} and higher" if highest is None else str(lowest) if lowest == highest else f"{lowest} to {highest}"


def _matrix(facts: Facts) -> str:
    found = cells(facts)
    head = ("TensorRT-LLM", *(f"{row.package} {row.name}" for row in facts.flash))
    return _table(head, ([release.name, *_answers(found, release)] for release in facts.releases))


def _answers(found: tuple[Cell, ...], release: Release) -> list[str]:
    return [ANSWERS[cell.sharing.answer] for cell in found if cell.release is release]


def _closeness(facts: Facts) -> str:
    rows = ([row.level, row.fmha_off, row.why] for row in facts.closeness)
    return _table(("how close", "has to be off", "why"), rows)


def _claims(facts: Facts) -> Iterator[str]:
    for claim in facts.claims:
        yield f"### People quote: TensorRT-LLM {claim.tensorrt_llm} with flash-attn {claim.flash_attn}: {claim.claim}"
        supported = [f"- supported: {text}" for text in claim.supported]
        yield "\n".join([*supported, *(f"- unknown: {text}" for text in claim.unknown)])


def _drivers(facts: Facts) -> str:
    majors = [[f"{row.cuda}.x, in compatibility mode", row.driver] for row in facts.minor_drivers]
    return _table(("CUDA", "driver from"), [*majors, *([row.cuda, row.driver] for row in facts.drivers)])


def _rules(found: Iterable[Rule]) -> str:
    by = {"check": "this check", "build": "the build", "plan": "the plan", "start": "the start"}
    rows = ([f"`{rule.id}`", rule.severity, by[rule.by], rule.what.replace("{", "").replace("}", "")] for rule in found)
    return _table(("id", "severity", "seen to by", "what"), rows)


def _used(facts: Facts) -> Iterator[tuple[str, str]]:
    rows: list[tuple[str, ...]] = [fact.source for each in facts.releases for fact in each.facts.values()]
    for table in (facts.flash, facts.closeness, facts.claims, facts.minor_drivers, facts.drivers, facts.attention):
        rows += [row.source for row in table]
    used = {key for keys in rows for key in keys}
    return ((key, text) for key, text in facts.sources.items() if key in used)
