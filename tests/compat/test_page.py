from __future__ import annotations

from pathlib import Path

from tests.compat.builders import FACTS
from toolkit.compat import book, matrix, page

PAGE = Path(__file__).resolve().parents[2] / "docs" / "compatibility.md"


def test_the_page_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == page.page(FACTS), "run scripts/generate_compatibility.py"


def test_the_page_names_every_release_every_rule_and_both_quoted_rows() -> None:
    text = page.page(FACTS)
    assert all(f"| {release.name} |" in text for release in FACTS.releases)
    assert all(f"`{name}`" in text for name in book.rules())
    assert text.count("### People quote") == 2


def test_the_matrix_has_a_source_for_every_pair_and_fact() -> None:
    document = matrix.document(FACTS)
    assert len(document["pairs"]) == len(FACTS.releases) * len(FACTS.flash)
    assert all(pair["source"] for pair in document["pairs"])
    for release in document["tensorrt_llm"]:
        facts = [value for value in release.values() if isinstance(value, dict)]
        assert all(fact["source"] and fact["status"] for fact in facts)


def test_unknown_stays_unknown_in_the_matrix() -> None:
    found = {(cell.release.name, cell.flash.name): cell.sharing.answer for cell in matrix.cells(FACTS)}
    assert found[">=0.18.0,<=0.18.2", "2.7.3"] == "unknown"
    assert found["0.12.0", "2.6.3"] == "yes"
    assert found["0.12.0", "2.5.8"] == "build"
    assert found["0.8.0", "3.0.0"] == "no"
