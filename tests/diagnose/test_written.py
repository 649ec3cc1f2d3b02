"""Logs written from decisive passages of public reports, each with the ordinary lines of its server around them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.diagnose.written import write
from toolkit.diagnose import classify

CASES = yaml.safe_load(Path(__file__).with_name("written.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
@pytest.mark.parametrize("seed", [1, 2])
def test_a_start_is_told_among_the_ordinary_lines_of_its_server(case: dict[str, Any], seed: int) -> None:
    log = write(case, seed)
    kind, verdict, culprit = case["want"]
    found = classify([log.data])
    assert (found.kind, found.verdict, found.root_line) == (kind, verdict, log.root_line)
    assert culprit in (None, found.culprit)


def test_every_class_is_among_the_cases() -> None:
    kinds = [case["want"][0] for case in CASES]
    assert all(kinds.count(kind) >= 3 for kind in set(kinds))
    assert len(set(kinds)) == 40
