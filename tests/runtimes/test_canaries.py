from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.runtimes.canaries import (
    CanaryPrompt,
    Reference,
    canary_set,
    counted_difference,
    first_difference,
    judge,
    margin_bound,
)

SIZES: dict[str, Any] = {
    "tokens_per_block": 32, "max_num_tokens": 512, "max_input_len": 2048, "chunked_prefill": True,
}  # fmt: skip
SHORT = CanaryPrompt("short", "x", 1, 1, "context_fmha")
TWICE = CanaryPrompt("cached", "x", 2, 65, "kv_cache_reuse")
SURE = Reference((1, 2, 3), (9.0, 9.0, 9.0))


def test_the_set_reaches_cached_blocks_a_shared_prefix_and_chunks() -> None:
    prompts = {prompt.id: prompt for prompt in canary_set("Hello", **SIZES)}
    assert list(prompts) == ["short", "cached", "shared_prefix", "chunked"]
    assert (prompts["short"].text, prompts["short"].times) == ("Hello", 1)
    assert prompts["cached"].times == 2
    assert prompts["chunked"].guard == "chunked_prefill"


@given(block=st.sampled_from([16, 32, 64, 128]), tokens=st.integers(64, 4096))
def test_every_prompt_has_at_least_the_words_it_needs(block: int, tokens: int) -> None:
    sizes = {**SIZES, "tokens_per_block": block, "max_num_tokens": tokens, "max_input_len": 8192}
    for prompt in canary_set("Hello", **sizes):
        assert len(prompt.text.split()) >= prompt.min_tokens
    cached = next(prompt for prompt in canary_set("Hello", **sizes) if prompt.id == "cached")
    assert cached.min_tokens > 2 * block


def test_the_other_suffix_stands_on_the_same_blocks() -> None:
    _, cached, shared, _ = canary_set("Hello", **SIZES)
    prefix = " ".join(cached.text.split()[:65])
    assert shared.text.startswith(prefix)
    assert shared.text != cached.text


def test_what_does_not_fit_or_is_not_allowed_is_left_out() -> None:
    assert [each.id for each in canary_set("x", **{**SIZES, "chunked_prefill": False})][-1] == "shared_prefix"
    assert [each.id for each in canary_set("x", **{**SIZES, "max_num_tokens": 4096})][-1] == "shared_prefix"
    assert [each.id for each in canary_set("x", **{**SIZES, "max_input_len": 100, "max_num_tokens": 100})] == ["short"]


def test_right_answers_are_no_mismatch() -> None:
    answers = {"short": [[1, 2, 3]], "cached": [[1, 2, 3], [1, 2, 3]]}
    assert judge([SHORT, TWICE], answers, {"short": SURE, "cached": SURE}, 0.5) == ()


def test_repeats_must_agree_even_without_a_reference() -> None:
    (found,) = judge([TWICE], {"cached": [[1, 2, 3], [1, 9, 3]]}, {}, 0.5)
    assert (found.id, found.guard) == ("cached", "kv_cache_reuse")
    assert "differs from the first at token 1" in found.what


def test_an_answer_that_did_not_come_is_a_mismatch() -> None:
    (found,) = judge([TWICE], {"cached": [[1]]}, {}, 0.5)
    assert "1 of 2 answers came" in found.what


def test_a_difference_counts_only_where_the_lead_is_above_the_bound() -> None:
    tie = Reference((1, 2, 3), (9.0, 0.1, 9.0))
    assert judge([SHORT], {"short": [[1, 7, 7]]}, {"short": tie}, 0.5) == ()
    (found,) = judge([SHORT], {"short": [[1, 7, 7]]}, {"short": SURE}, 0.5)
    assert "token 1 is not the reference's, whose lead there is 9" in found.what


def test_after_a_tie_nothing_more_can_be_said() -> None:
    tie = Reference((1, 2, 3), (0.1, 9.0, 9.0))
    assert counted_difference([5, 6, 7], tie, 0.5) is None


def test_an_answer_that_ends_early_counts_by_the_lead_there() -> None:
    assert counted_difference([1, 2], SURE, 0.5) == 2
    assert counted_difference([1, 2, 3, 4], SURE, 0.5) == 3


@pytest.mark.parametrize(("one", "other", "at"), [([], [], None), ([1], [1], None), ([1], [2], 0), ([1], [1, 2], 1)])
def test_the_first_difference(one: list[int], other: list[int], at: int | None) -> None:
    assert first_difference(one, other) == at


def test_the_bound_is_twice_what_right_computations_differ_by() -> None:
    assert margin_bound([0.01, 0.2, 0.05]) == 0.4
    assert margin_bound([]) == 0.0
