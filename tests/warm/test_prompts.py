from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.warm.prompts import WORDS, length_of_probe, probe_lengths, prompt, unseen_length
from toolkit.warm.steady import WINDOW, Sample, steady

LIMITS = st.none() | st.integers(min_value=8, max_value=100_000)


def test_prompts_of_other_seeds_differ_from_the_first_word_on_more_often_than_not():
    firsts = {prompt(6, seed).split()[0] for seed in range(40)}
    assert len(firsts) > 10


def test_a_prompt_is_the_same_on_every_run_and_has_its_length():
    assert prompt(14, 3) == prompt(14, 3)
    assert len(prompt(14, 3).split()) == 14
    assert set(prompt(30, 9).split()) <= set(WORDS)


def test_no_prompt_of_a_proof_comes_twice():
    assert len({prompt(6, seed) for seed in range(512)}) == 512


@given(LIMITS)
def test_the_first_request_has_a_length_that_no_probe_used(limit: int | None):
    assert unseen_length(limit) not in probe_lengths(limit)


@given(LIMITS)
def test_every_length_fits_the_input_limit(limit: int | None):
    lengths = (*probe_lengths(limit), unseen_length(limit))
    assert all(length >= 1 and (limit is None or 2 * length <= limit) for length in lengths)


def proven_after(times_ms: list[float]) -> int | None:
    lengths = probe_lengths(None)
    samples = [Sample(length_of_probe(index, lengths), ms) for index, ms in enumerate(times_ms)]
    return next((end for end in range(len(samples) + 1) if steady(samples[:end])), None)


@pytest.mark.parametrize("period", [2, 3, 4])
def test_slow_requests_in_step_with_the_lengths_never_look_steady(period: int):
    for pattern in product((40.0, 400.0), repeat=period):
        if len(set(pattern)) == 2:
            assert proven_after([*pattern] * (200 // period)) is None


def test_a_steady_server_needs_seven_probes():
    assert proven_after([40.0] * 64) == 7


@pytest.mark.parametrize("head", [[8000.0, 4000.0, 2000.0, 1000.0, 500.0, 250.0][:n] for n in range(1, 7)])
def test_slow_first_requests_are_never_part_of_the_proof(head: list[float]):
    end = proven_after([*head, *[40.0] * 61])
    assert end is not None
    assert end - len(head) >= WINDOW


def test_probes_have_three_lengths():
    assert {length_of_probe(index, probe_lengths(None)) for index in range(4)} == {6, 14, 30}
