"""Lines beyond those of the corpus: other programs, versions and wordings of the same kinds."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from toolkit.diagnose import classify

WORDINGS = yaml.safe_load(Path(__file__).with_name("wordings.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize(("kind", "culprit", "text"), WORDINGS)
def test_the_kind_is_told_from_other_wordings(kind: str, culprit: str | None, text: str) -> None:
    found = classify([text + "\n"])
    assert found.kind == kind
    if culprit:
        assert found.culprit == culprit
