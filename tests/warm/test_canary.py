from __future__ import annotations

import pytest

from toolkit.runtimes.base import CanaryCheck
from toolkit.warm.canary import judge_text, judge_vector
from toolkit.warm.model import CanaryResult

FRANCE = CanaryCheck("The capital of France is", 2, expected_tokens=(7042, 30), expected_text=" Paris.")


def test_text_and_tokens_must_both_be_right_where_both_are_known():
    assert judge_text(FRANCE, " Paris.", (7042, 30)).ok
    assert judge_text(FRANCE, " Lyon.", (7042, 30)) == CanaryResult(False, " Paris.", " Lyon.")
    assert judge_text(FRANCE, " Paris.", (7042, 31)) == CanaryResult(False, "tokens [7042, 30]", "tokens [7042, 31]")


def test_tokens_alone_are_enough():
    check = CanaryCheck(expected_tokens=(7042, 30))
    assert judge_text(check, "whatever", (7042, 30)).ok
    assert not judge_text(check, "whatever", (30, 7042)).ok
    assert not judge_text(check, "whatever", None).ok


def test_an_answer_may_have_more_tokens_than_were_recorded_but_not_fewer():
    check = CanaryCheck(expected_tokens=(7042, 30))
    assert judge_text(check, "", (7042, 30, 198)).ok
    assert not judge_text(check, "", (7042,)).ok


def test_text_decides_when_the_answer_has_no_tokens():
    assert judge_text(FRANCE, " Paris.", None).ok
    assert not judge_text(FRANCE, " Lyon.", None).ok


def test_the_answer_may_go_on_after_the_expected_text():
    assert judge_text(CanaryCheck(expected_text=" Paris"), " Paris. It is", None).ok
    assert judge_text(CanaryCheck(expected_text=" Paris"), "Paris", None).ok
    assert not judge_text(CanaryCheck(expected_text=" Paris"), " Par", None).ok


@pytest.mark.parametrize("text", ["anything", ""])
def test_without_an_expected_answer_nothing_is_right(text: str):
    assert not judge_text(CanaryCheck(), text, None).ok


def test_an_expected_text_of_spaces_is_taken_literally():
    assert not judge_text(CanaryCheck(expected_text="\n"), "anything", None).ok
    assert judge_text(CanaryCheck(expected_text="\n"), "\n", None).ok


def test_a_vector_counts_by_its_direction():
    check = CanaryCheck(expected_vector=(1.0, 0.0, 0.0))
    assert judge_vector(check, (2.0, 0.0, 0.0)).ok
    assert not judge_vector(check, (1.0, 1.0, 0.0)).ok
    assert judge_vector(check, (1.0, 1.0, 0.0)).got == "cosine 0.707107"


@pytest.mark.parametrize("vector", [(1.0, 0.0), (0.0, 0.0, 0.0), (float("nan"), 0.0, 0.0), (-1.0, 0.0, 0.0)])
def test_a_vector_of_another_size_or_without_direction_is_wrong(vector: tuple[float, ...]):
    assert not judge_vector(CanaryCheck(expected_vector=(1.0, 0.0, 0.0)), vector).ok


def test_without_an_expected_vector_nothing_is_right():
    assert not judge_vector(CanaryCheck(), (1.0,)).ok


def test_where_nobody_knows_what_is_right_an_answer_is_one_and_that_is_said():
    check = CanaryCheck("x", 3, repeats_only=True)
    found = judge_text(check, " four", None)
    assert (found.ok, found.got) == (True, " four")
    assert "which one is right is not known" in found.expected
    assert not judge_text(check, "", None).ok
