from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from toolkit.serve.sampling import FEW, Sampler, Sampling, choose, nucleus


def draws(sampling: Sampling, logits: torch.Tensor, count: int = 200) -> list[int]:
    sampler = Sampler(sampling)
    return [sampler.draw(logits) for _ in range(count)]


def test_greedy_takes_the_likeliest_id_of_each_row() -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0], [5.0, 0.0, 0.0]])
    tokens = choose(logits, [Sampler(Sampling()), Sampler(Sampling(temperature=1e-9))])
    assert [token.id for token in tokens if token] == [1, 0]


def test_the_same_seed_gives_the_same_tokens_and_another_one_others() -> None:
    logits = torch.zeros(1000)
    first = draws(Sampling(temperature=1.0, seed=7), logits)
    assert draws(Sampling(temperature=1.0, seed=7), logits) == first
    assert draws(Sampling(temperature=1.0, seed=8), logits) != first


def test_a_seed_s_tokens_outlast_logits_that_are_a_little_off() -> None:
    exact = torch.randn(5000, generator=torch.Generator().manual_seed(1))
    off = exact + 0.003 * torch.randn(5000, generator=torch.Generator().manual_seed(2))
    for top_p in (1.0, 0.9):
        sampling = Sampling(temperature=1.0, top_p=top_p, seed=-7)
        pairs = list(zip(draws(sampling, exact), draws(sampling, off), strict=True))
        assert sum(one != other for one, other in pairs) < 0.02 * len(pairs)


def test_two_requests_without_a_seed_differ() -> None:
    logits = torch.zeros(1000)
    assert draws(Sampling(temperature=1.0), logits) != draws(Sampling(temperature=1.0), logits)


def test_draws_follow_the_probabilities() -> None:
    logits = torch.tensor([0.7, 0.2, 0.1]).log()
    ids = draws(Sampling(temperature=1.0, seed=1), logits, 4000)
    shares = [ids.count(n) / len(ids) for n in range(3)]
    assert shares == pytest.approx([0.7, 0.2, 0.1], abs=0.03)


def test_a_low_temperature_sharpens() -> None:
    logits = torch.tensor([1.0, 0.0])
    assert set(draws(Sampling(temperature=0.05, seed=1), logits)) == {0}


def test_top_p_leaves_out_what_is_beyond_it() -> None:
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()
    assert set(draws(Sampling(temperature=1.0, top_p=0.75, seed=3), logits)) == {0, 1}
    assert set(draws(Sampling(temperature=1.0, top_p=0.0, seed=3), logits)) == {0}


def test_the_nucleus_of_a_flat_distribution_reaches_past_the_few_likeliest() -> None:
    probabilities = torch.full((4 * FEW,), 1 / (4 * FEW))
    values, ids = nucleus(probabilities, 0.9)
    assert ids is not None
    assert len(values) == len(ids) == pytest.approx(0.9 * 4 * FEW, abs=2)


@given(st.lists(st.floats(-8, 8), min_size=1, max_size=40), st.floats(0, 0.999))
def test_the_nucleus_is_the_smallest_set_that_reaches_top_p(scores: list[float], top_p: float) -> None:
    probabilities = torch.tensor(scores).softmax(-1)
    values, ids = nucleus(probabilities, top_p)
    assert ids is not None
    assert torch.equal(probabilities[ids], values)
    kept = float(values.double().sum())
    assert kept >= top_p - 1e-5
    if len(values) > 1:
        assert kept - float(values[-1]) < top_p + 1e-6
    left = set(range(len(scores))) - set(ids.tolist())
    assert all(float(probabilities[i]) <= float(values.min()) for i in left)


def test_logprobs_are_of_the_raw_logits_and_likeliest_first() -> None:
    logits = torch.tensor([[0.5, 0.3, 0.2]]).log()
    (token,) = choose(logits, [Sampler(Sampling(logprobs=2))])
    assert token is not None
    assert token.logprob == pytest.approx(math.log(0.5))
    assert [i for i, _ in token.top] == [0, 1]
    assert [value for _, value in token.top] == pytest.approx([math.log(0.5), math.log(0.3)])


def test_more_logprobs_than_ids_and_impossible_ids_are_no_trouble() -> None:
    logits = torch.tensor([[0.0, float("-inf")]])
    (token,) = choose(logits, [Sampler(Sampling(logprobs=20))])
    assert token is not None
    assert token.top == ((0, 0.0), (1, -9999.0))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_row_without_a_finite_maximum_gives_no_token(value: float) -> None:
    logits = torch.tensor([[0.0, 1.0], [value, value]])
    good, bad = choose(logits, [Sampler(Sampling()), Sampler(Sampling(temperature=1.0))])
    assert good is not None
    assert bad is None
