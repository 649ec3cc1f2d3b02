from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.plan.properties import broken
from tests.plan.support import answer

CASES = sorted((Path(__file__).parent.parent / "placement").glob("*.yaml"))


@pytest.mark.parametrize("path", CASES, ids=[path.stem for path in CASES])
def test_the_plan_of_a_case_has_all_its_properties(path: Path):
    case = yaml.safe_load(path.read_text())
    result = answer(case)
    assert broken(case, result) == [], result
