from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from packaging.specifiers import SpecifierSet

from toolkit import facts
from toolkit.facts.load import HERE, parse, read
from toolkit.facts.model import FIRM

UNSURE = ("line_commit", "nearest_dev", "inferred", "secondary")
TABLES = sorted(path.stem for path in HERE.glob("*.yaml") if path.stem != "sources")


def rows(value: Any, place: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every row of a table: a mapping that carries a source."""
    if isinstance(value, dict):
        if "source" in value:
            yield place, value
        for key, item in value.items():
            yield from rows(item, f"{place}.{key}")
    elif isinstance(value, list):
        for at, item in enumerate(value):
            yield from rows(item, f"{place}[{at}]")


def content(table: str) -> Any:
    return parse((HERE / f"{table}.yaml").read_bytes())


@pytest.mark.parametrize("table", TABLES)
def test_every_source_a_row_names_is_in_the_list_of_sources(table: str) -> None:
    known = facts.load().sources
    found = list(rows(content(table), table))
    assert found
    for place, row in found:
        sources = row["source"]
        assert sources, place
        assert isinstance(sources, list), place
        assert set(sources) <= set(known), (place, set(sources) - set(known))


def test_every_fact_of_a_release_has_a_source_and_a_status() -> None:
    for release in facts.load().releases:
        assert SpecifierSet(release.versions)
        for name, fact in release.facts.items():
            assert fact.source, (release.versions, name)
            assert fact.status in FIRM + UNSURE, (release.versions, name)


@pytest.mark.parametrize("name", ["torch", "tensorrt", "python", "transformers"])
def test_ranges_are_ranges(name: str) -> None:
    for release in facts.load().releases:
        fact = release.fact(name)
        if fact is not None:
            assert all(SpecifierSet(text) for text in fact.ranges), (release.versions, name)


def test_every_list_that_is_a_row_has_its_own_source() -> None:
    named = [("flash_attn", "rows"), ("flash_attn", "torch_abi"), ("cuda", "minor_compatibility"), ("cuda", "drivers")]
    named += [("cuda", "architectures"), ("attention", "claims"), ("attention", "closeness"), ("attention", "limits")]
    named += [("trtllm_build", key) for key in ("tables", "unsure", "constraints", "conflicts")]
    named += [("trtllm_serve", key) for key in ("tables", "spellings", "conflicts")]
    for table, key in named:
        for row in content(table)[key]:
            assert row.get("source"), (table, key, row)


def test_no_two_rows_speak_of_one_release() -> None:
    for release in facts.load().releases:
        if release.versions.startswith("=="):
            version = release.name
            speaking = [row for row in facts.load().releases if SpecifierSet(row.versions).contains(version)]
            assert speaking == [release]


def test_the_version_of_the_facts_is_that_of_their_content() -> None:
    assert read(HERE).version == facts.load().version
