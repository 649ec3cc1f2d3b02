"""The whole matrix: every TensorRT-LLM release with every flash-attn release, and what each of them accepts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from toolkit.compat.cases import WHAT_IF
from toolkit.compat.model import Case, EnvironmentView
from toolkit.compat.pairs import Sharing, sharing
from toolkit.facts import Facts, FlashRow, Release

FACTS = (
    "torch", "cuda", "tensorrt", "python", "transformers", "abi", "sm", "modes", "cutlass_dsl", "base_image",
    "flash_attn", "flash_attn_4",
)  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """One pair: whether one environment can hold both."""

    release: Release
    flash: FlashRow
    sharing: Sharing


def cells(facts: Facts) -> tuple[Cell, ...]:
    """Every pair, releases in order and flash-attn in order within."""
    case = Case(facts, {})
    nobody = EnvironmentView(WHAT_IF, hypothetical=True)
    return tuple(
        Cell(release, row, sharing(case, nobody, release, row)) for release in facts.releases for row in facts.flash
    )


def document(facts: Facts) -> dict[str, Any]:
    """The document of ``check --matrix --json``, less its schema number."""
    return {
        "facts_version": facts.version,
        "tensorrt_llm": [_release(facts, release) for release in facts.releases],
        "flash_attn": [_flash(facts, row) for row in facts.flash],
        "pairs": [_cell(facts, cell) for cell in cells(facts)],
        "closeness": [
            {"level": row.level, "fmha_off": row.fmha_off, "why": row.why, "source": facts.cite(row.source)}
            for row in facts.closeness
        ],
        "claims": [
            {
                "tensorrt_llm": claim.tensorrt_llm,
                "flash_attn": claim.flash_attn,
                "claim": claim.claim,
                "supported": list(claim.supported),
                "unknown": list(claim.unknown),
                "source": facts.cite(claim.source),
            }
            for claim in facts.claims
        ],
    }


def _release(facts: Facts, release: Release) -> dict[str, Any]:
    return {"versions": release.versions, **{name: _fact(facts, release, name) for name in FACTS}}


def _fact(facts: Facts, release: Release, name: str) -> dict[str, Any] | None:
    fact = release.fact(name)
    if fact is None:
        return None
    value = list(fact.value) if isinstance(fact.value, tuple) else fact.value
    return {"value": value, "status": fact.status, "source": facts.cite(fact.source), "note": fact.note}


def _flash(facts: Facts, row: FlashRow) -> dict[str, Any]:
    return {
        "package": row.package,
        "versions": row.versions,
        "torch": row.torch,
        "python": row.python,
        "cuda": row.cuda,
        "wheel_torch": list(row.wheel_torch),
        "capability": list(row.capability),
        "note": row.note,
        "source": facts.cite(row.source),
    }


def _cell(facts: Facts, cell: Cell) -> dict[str, Any]:
    return {
        "tensorrt_llm": cell.release.versions,
        "package": cell.flash.package,
        "flash_attn": cell.flash.versions,
        "one_environment": cell.sharing.answer,
        "why": cell.sharing.why,
        "source": facts.cite(cell.sharing.sources),
    }
