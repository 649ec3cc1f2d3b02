"""What is written of the fault table is the table, and what its invariants look for would be seen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.faults import invariants
from tests.faults.table import BY_NAME, ELSEWHERE, TABLE, markdown

ROOT = Path(__file__).parents[2]


def test_the_documentation_shows_the_table() -> None:
    assert markdown() in (ROOT / "docs/supervision.md").read_text(), f"put this into docs/supervision.md:\n{markdown()}"


def test_every_row_has_a_name_of_its_own() -> None:
    assert len(BY_NAME) == len(TABLE)


def test_what_is_tested_elsewhere_is_there() -> None:
    assert [place for _, place in ELSEWHERE.values() if not (ROOT / place).is_file()] == []


def moved(service: str, source: str, target: str) -> dict[str, Any]:
    return {"kind": "transition", "service": service, "from": source, "to": target}


def spawned(service: str) -> dict[str, Any]:
    return {"kind": "spawned", "service": service}


def test_an_attempt_beside_a_living_one_is_a_double_start() -> None:
    gone = moved("web", "DRAINING", "BACKOFF")
    begun = {"kind": "deployment", "state": "started", "service": None}
    assert invariants.double_starts([spawned("web"), spawned("behind"), gone, spawned("web")]) == []
    assert invariants.double_starts([spawned("web"), begun, spawned("web")]) == []
    assert len(invariants.double_starts([spawned("web"), moved("web", "SERVING", "DRAINING"), spawned("web")])) == 1


@pytest.mark.parametrize(
    ("told", "right"),
    [
        ([("web", "PRIME", "SERVING"), ("behind", "INIT", "PRELOAD")], True),
        ([("behind", "INIT", "PRELOAD"), ("web", "PRIME", "SERVING")], False),
        ([("behind", "INIT", "PRELOAD")], False),
        ([("behind", "DRAINING", "STOPPED"), ("web", "SERVING", "DRAINING")], True),
        ([("web", "SERVING", "DRAINING"), ("behind", "DRAINING", "STOPPED")], False),
    ],
)
def test_the_order_of_starts_and_stops_is_seen(told: list[tuple[str, str, str]], right: bool) -> None:
    assert invariants.in_order([moved(*each) for each in told]) is right
