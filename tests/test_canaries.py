from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.canaries import (
    GUARDS,
    Answer,
    CanaryPrompt,
    CanarySet,
    Reference,
    canary_set,
    counted_difference,
    cut,
    decided,
    first_difference,
    judge,
    margin_bound,
    of_document,
    text_difference,
    to_document,
)

SIZES: dict[str, Any] = {
    "tokens_per_block": 32, "max_num_tokens": 512, "max_input_len": 2048, "chunked_prefill": True,
}  # fmt: skip
SHORT = CanaryPrompt("short", "x", 1, 1, "context_fmha")
TWICE = CanaryPrompt("cached", "x", 2, 65, "kv_cache_reuse")
SURE = Reference((1, 2, 3), (9.0, 9.0, 9.0))


def tokens(*values: int) -> Answer:
    return Answer(" ".join(map(str, values)), values)


def spoken(*pieces: str, margins: tuple[float, ...] | None = None) -> Reference:
    """A reference whose tokens say these pieces."""
    ends = tuple(sum(map(len, pieces[: at + 1])) for at in range(len(pieces)))
    return Reference(tuple(range(len(pieces))), margins or (9.0,) * len(pieces), "".join(pieces), ends)


def test_the_set_reaches_cached_blocks_a_shared_prefix_and_chunks() -> None:
    prompts = {prompt.id: prompt for prompt in canary_set("Hello", **SIZES)}
    assert list(prompts) == ["short", "cached", "shared_prefix", "chunked"]
    assert (prompts["short"].text, prompts["short"].times) == ("Hello", 1)
    assert prompts["cached"].times == 2
    assert prompts["chunked"].guard == "chunked_prefill"
    assert {prompt.guard for prompt in prompts.values()} == set(GUARDS)


@given(block=st.sampled_from([16, 32, 64, 128]), tokens=st.integers(64, 4096))
def test_every_prompt_has_at_least_the_words_it_needs(block: int, tokens: int) -> None:
    sizes = {**SIZES, "tokens_per_block": block, "max_num_tokens": tokens, "max_input_len": 8192}
    for prompt in canary_set("Hello", **sizes):
        assert len(prompt.text.split()) >= prompt.min_tokens
    cached = next(prompt for prompt in canary_set("Hello", **sizes) if prompt.id == "cached")
    assert cached.min_tokens > 2 * block


@given(st.lists(st.integers(1, 4), min_size=5, max_size=5), st.integers(0, 1), st.sampled_from([1, 16, 32, 64]))
def test_with_a_tokenizer_every_prompt_just_has_the_tokens_it_needs(cost: list[int], bos: int, block: int) -> None:
    def count(text: str) -> int:
        return bos + sum(cost[len(word) % len(cost)] for word in text.split())

    sizes = {**SIZES, "tokens_per_block": block, "max_num_tokens": 700, "max_input_len": 4096}
    prompts = {prompt.id: prompt for prompt in canary_set("Hello", **sizes, count=count)}
    assert list(prompts) == ["short", "cached", "shared_prefix", "chunked"]
    for prompt in prompts.values():
        assert prompt.min_tokens <= count(prompt.text) <= 4096
    shorter = prompts["cached"].text.partition(". The first word is")[0].rsplit(" ", 1)[0]
    assert count(shorter) < 2 * block + 1 or shorter.endswith("tree.")


def test_the_other_suffix_stands_on_the_same_blocks() -> None:
    _, cached, shared, _ = canary_set("Hello", **SIZES)
    prefix = " ".join(cached.text.split()[:65])
    assert shared.text.startswith(prefix)
    assert shared.text != cached.text


def test_what_a_long_prompt_asks_for_stands_in_its_first_block_only() -> None:
    for prompt in canary_set("Hello", **SIZES)[1:]:
        asked = prompt.text.rpartition(". ")[2]
        assert prompt.text.index(asked) < 60
        assert prompt.text.count("silver") == 1


def test_what_does_not_fit_or_is_not_allowed_is_left_out() -> None:
    assert [each.id for each in canary_set("x", **{**SIZES, "chunked_prefill": False})][-1] == "shared_prefix"
    assert [each.id for each in canary_set("x", **{**SIZES, "max_num_tokens": 4096})][-1] == "shared_prefix"
    assert [each.id for each in canary_set("x", **{**SIZES, "max_input_len": 100, "max_num_tokens": 100})] == ["short"]


def test_a_chunked_prompt_that_this_tokenizer_makes_too_long_is_left_out() -> None:
    sizes = {**SIZES, "max_num_tokens": 99, "max_input_len": 100}
    ids = [each.id for each in canary_set("x", **sizes, count=lambda text: 3 * len(text.split()))]
    assert ids == ["short", "cached", "shared_prefix"]


def test_right_answers_are_no_mismatch() -> None:
    answers = {"short": [tokens(1, 2, 3)], "cached": [tokens(1, 2, 3), tokens(1, 2, 3)]}
    assert judge([SHORT, TWICE], answers, {"short": SURE, "cached": SURE}, 0.5) == ()


def test_repeats_must_agree_even_without_a_reference() -> None:
    (found,) = judge([TWICE], {"cached": [tokens(1, 2, 3), tokens(1, 9, 3)]}, {}, 0.5)
    assert (found.id, found.guard) == ("cached", "kv_cache_reuse")
    assert "wrong answer to 'cached' (2nd time)" in found.what
    assert (found.expected, found.got) == ("1 2 3", "1 9 3")


def test_repeats_that_tell_their_text_only_must_agree_too() -> None:
    (found,) = judge([TWICE], {"cached": [Answer(" Paris"), Answer(" Rome")]}, {}, 0.5)
    assert found.guard == "kv_cache_reuse"


def test_the_first_of_two_answers_reads_no_cached_block_so_another_guard_is_named() -> None:
    (found,) = judge([TWICE], {"cached": [tokens(7), tokens(7)]}, {"cached": SURE}, 0.5)
    assert found.guard == "context_fmha"
    assert "(1st time)" in found.what


def test_an_answer_that_did_not_come_is_a_mismatch() -> None:
    (found,) = judge([TWICE], {"cached": [tokens(1)]}, {}, 0.5)
    assert "1 of 2 answers came" in found.what


def test_a_difference_counts_only_where_the_lead_is_above_the_bound() -> None:
    tie = Reference((1, 2, 3), (9.0, 0.1, 9.0))
    assert judge([SHORT], {"short": [tokens(1, 7, 7)]}, {"short": tie}, 0.5) == ()
    (found,) = judge([SHORT], {"short": [tokens(1, 7, 7)]}, {"short": SURE}, 0.5)
    assert "token 2 is not the reference's, whose lead there is 9" in found.what


def test_after_a_tie_nothing_more_can_be_said() -> None:
    tie = Reference((1, 2, 3), (0.1, 9.0, 9.0))
    assert counted_difference(tokens(5, 6, 7), tie, 0.5) is None


def test_an_answer_that_ends_early_counts_by_the_lead_there_and_one_that_goes_on_does_not() -> None:
    assert counted_difference(tokens(1, 2), SURE, 0.5) == 2
    assert counted_difference(tokens(1, 2, 3, 4), SURE, 0.5) is None


def test_a_lead_that_is_not_known_excuses_nothing() -> None:
    assert counted_difference(Answer(" Rome"), Reference((), (), " Paris"), 0.5) == 0
    assert counted_difference(Answer(" Paris"), Reference((), (), " Paris"), 0.5) is None


@pytest.mark.parametrize(
    ("text", "suspects"),
    [
        (" Paris, a city", []),
        ("Paris, a city", []),
        (" Paris, a city of", []),
        (" Paris, a town", [3]),
        (" Paris. It is", [1]),
        (" Parma, a city", [0]),
        (" Paris, a", [3]),
        ("", [0]),
    ],
)
def test_a_text_parts_from_the_reference_at_a_token(text: str, suspects: list[int]) -> None:
    assert list(text_difference(text, spoken(" Paris", ",", " a", " city"))) == suspects


def test_another_token_may_begin_as_the_reference_does_so_the_whole_word_is_suspect() -> None:
    assert list(text_difference(" unbound", spoken(" the", margins=(9.0,)))) == [0]
    assert list(text_difference(" unbound", spoken(" un", "bind", "s"))) == [0, 1]
    tie_before = spoken(" un", "bind", margins=(0.1, 9.0))
    assert counted_difference(Answer(" unbound"), tie_before, 0.5) is None
    assert counted_difference(Answer(" unbound"), spoken(" un", "bind"), 0.5) == 1


def test_tokens_that_show_nothing_of_themselves_are_suspects_of_the_character_they_begin() -> None:
    half = Reference((1, 2, 3), (9.0, 9.0, 9.0), " a é", (2, 3, 4))
    assert list(text_difference(" a ü", half)) == [2]
    late = Reference((1, 2, 3), (9.0, 0.1, 9.0), " aé", (2, 2, 3))
    assert list(text_difference(" aü", late))[-2:] == [1, 2]
    assert counted_difference(Answer(" aü"), late, 0.5) is None


PIECES = st.lists(st.sampled_from([" the", " a", "b", ",", " ", "\n", "é", ""]), min_size=1, max_size=8)


@given(PIECES, st.text(max_size=4))
def test_the_reference_itself_and_what_goes_on_after_it_never_part(pieces: list[str], more: str) -> None:
    reference = spoken(*pieces)
    assert not text_difference(reference.text + more, reference) or not reference.text.strip()
    assert not text_difference(reference.text, reference)


@given(PIECES, st.integers(0, 7), st.sampled_from([" X", "X", "#"]))
def test_a_changed_token_is_among_the_suspects_and_counts_when_all_leads_do(
    pieces: list[str], at: int, other: str
) -> None:
    at = min(at, len(pieces) - 1)
    reference = spoken(*pieces)
    answer = "".join(pieces[:at]) + other
    suspects = text_difference(answer, reference)
    if not suspects:  # only where what is changed is space at an end
        assert not "".join(pieces[at:]).strip()
        return
    assert suspects[-1] >= at or "" in pieces or not "".join(pieces[: at + 1]).strip()
    assert counted_difference(Answer(answer), reference, 0.5) == suspects[-1]
    excused = Reference(reference.tokens, (0.1,) * len(pieces), reference.text, reference.ends)
    assert counted_difference(Answer(answer), excused, 0.5) is None


@given(st.lists(st.floats(0, 10), min_size=1, max_size=8), st.floats(0, 10))
def test_what_is_decided_is_above_the_bound_and_ends_where_it_is_not(margins: list[float], bound: float) -> None:
    reference = spoken(*(f" {at}" for at in range(len(margins))), margins=tuple(margins))
    kept = cut(reference, decided(reference, bound))
    assert all(lead > bound for lead in kept.margins)
    assert len(kept.tokens) == len(margins) or margins[len(kept.tokens)] <= bound
    assert kept.text == "".join(f" {at}" for at in range(len(kept.tokens)))


@pytest.mark.parametrize(("one", "other", "at"), [([], [], None), ([1], [1], None), ([1], [2], 0), ([1], [1, 2], 1)])
def test_the_first_difference(one: list[int], other: list[int], at: int | None) -> None:
    assert first_difference(one, other) == at


def test_the_bound_is_above_what_right_computations_differ_by() -> None:
    assert margin_bound([0.01, 0.2, 0.05]) == pytest.approx(0.3)
    assert margin_bound([]) == 0.0


def test_a_set_comes_back_from_its_document() -> None:
    found = CanarySet((SHORT, TWICE), {"short": spoken(" a", "b")}, 0.25, "transformers 5.0")
    assert of_document(to_document(found)) == found


@pytest.mark.parametrize("document", [{}, {"prompts": 3}, {"prompts": [{"id": "x"}], "references": {}, "bound": 0}])
def test_other_documents_are_no_set(document: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="no canary set"):
        of_document(document)
