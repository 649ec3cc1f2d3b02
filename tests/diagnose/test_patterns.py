"""patterns.yaml itself: every example matches its own pattern first, every name used exists."""

from __future__ import annotations

import re

import pytest

from tests.diagnose.literals import without_literal
from toolkit.diagnose import classify
from toolkit.diagnose.catalogue import Pattern, Rule, load
from toolkit.diagnose.refine import REFINEMENTS

CATALOGUE = load()
PATTERNS = CATALOGUE.patterns
EXAMPLES = [(pattern, example) for pattern in PATTERNS for example in pattern.examples]


@pytest.mark.parametrize(("pattern", "example"), EXAMPLES, ids=[pattern.name for pattern, _ in EXAMPLES])
def test_each_example_is_explained_by_its_own_pattern(pattern: Pattern, example: str) -> None:
    ready, stopped = "INFO:     Application startup complete.\n", "Signal (15) received.\n"
    before = {"shutdown": [ready, stopped], "served": [ready]}.get(pattern.phase or "", [])
    found = classify([*before, example + "\n"])
    assert found.pattern == pattern.name
    assert "?" not in found.summary + found.advice


def test_names_are_unique() -> None:
    names = [pattern.name for pattern in PATTERNS]
    assert len(names) == len(set(names))


def test_every_refinement_exists_and_is_used() -> None:
    assert {pattern.refine for pattern in PATTERNS if pattern.refine} == set(REFINEMENTS)


@pytest.mark.parametrize("rule", CATALOGUE.rules, ids=lambda rule: rule.name)
def test_every_line_that_an_expression_matches_is_looked_at(rule: Rule) -> None:
    unseen = {text: left for text in rule.texts if (left := without_literal(text, rule.needles)) is not None}
    assert not unseen


def test_needles_are_lower_case_as_the_lines_they_are_looked_for_in() -> None:
    assert all(needle == needle.lower() for rule in CATALOGUE.rules for needle in rule.needles)


def test_check_rules_are_written_in_one_way() -> None:
    rules = {pattern.check for pattern in PATTERNS if pattern.check}
    assert all(re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", rule) for rule in rules)


def test_every_pattern_has_a_source_and_all_but_the_context_bound_ones_an_example() -> None:
    assert all(pattern.source for pattern in PATTERNS)
    assert {pattern.name for pattern in PATTERNS if not pattern.examples} == {
        "affinity-einval", "affinity-eperm", "cuda-init-in-cpuset", "engine-config-missing", "engine-config-python",
        "option-refused", "pickle-truncated", "shm-python",
    }  # fmt: skip
