from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from toolkit.serve.replay import PATIENCE, Replays, Rounds, bucket_of, key_buckets, row_buckets

VOCAB = 5


@dataclass
class Recorded:
    """A graph as a GPU has it: what ran at capture runs again, on the same inputs, into the same output."""

    inputs: torch.Tensor
    logits: torch.Tensor
    run: object
    keys: int

    def replay(self):
        self.logits.copy_(self.run(self.inputs[0], self.inputs[1], self.keys))


class RecordingPool:
    def __init__(self):
        self.captures, self.renewals = [], 0

    def capture(self, run, rows, keys):
        self.captures.append((rows, keys))
        inputs = torch.zeros(2, rows, dtype=torch.int64)
        return Recorded(inputs, run(inputs[0], inputs[1], keys).clone(), run, keys)

    def renew(self):
        self.renewals += 1


@pytest.fixture
def made():
    """An engine of 6 slots and 600 positions whose logits tell token, position, rows and keys."""
    pool, cache = RecordingPool(), torch.zeros(2, 6, 8)
    seen = []

    def run(tokens, positions, keys):
        seen.append((len(tokens), keys))
        return torch.stack([tokens.float(), positions.float()], 1).repeat(1, 3)[:, :VOCAB]

    replays = Replays(run, pool, cache, 6, 600)
    for rows in replays.buckets:
        replays.capture(rows)
    return replays, pool, cache, seen


@given(st.integers(1, 10_000))
def test_buckets_grow_to_the_largest_size_itself(most):
    for buckets in (row_buckets(most), key_buckets(most)):
        assert buckets == sorted(set(buckets))
        assert buckets[-1] == most


@given(st.integers(1, 64), st.integers(1, 64))
def test_a_size_is_padded_to_the_next_bucket_or_to_none(size, most):
    found = bucket_of(size, row_buckets(most))
    assert found is None if size > most else found >= size


def test_a_batch_is_padded_and_its_own_rows_come_back(made):
    replays, _, cache, seen = made
    seen.clear()
    logits = replays.step([7, 8, 9], [10, 20, 30], 31, cache)
    assert logits[:, 0].tolist() == [7, 8, 9]
    assert logits[:, 1].tolist() == [10, 20, 30]
    assert seen == [(4, 256)]


def test_an_answer_outlives_the_next_step(made):
    replays, _, cache, _ = made
    first = replays.step([7], [10], 11, cache)
    replays.step([8], [11], 12, cache)
    assert first[0, 0] == 7


def test_long_contexts_take_the_next_bucket_of_keys(made):
    replays, _, cache, seen = made
    seen.clear()
    replays.step([1], [255], 256, cache)
    replays.step([1], [256], 257, cache)
    assert seen == [(1, 256), (1, 600)]


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 6])
def test_no_size_within_the_limits_captures_after_ready(made, count):
    replays, pool, cache, _ = made
    before = list(pool.captures)
    for position in (1, 100, 255, 256, 599):
        assert replays.step([1] * count, [position] * count, position + 1, cache) is not None
    assert pool.captures == before
    assert not replays.eager


def test_what_no_graph_can_take_is_counted_by_its_reason(made):
    replays, _, cache, _ = made
    assert replays.step([1], [600], 601, cache) is None
    assert replays.step([1] * 7, [1] * 7, 2, cache) is None
    assert replays.step([1], [1], 2, cache.clone()) is None
    assert dict(replays.eager) == {"shape": 2, "address": 1}


def test_another_data_type_at_the_same_place_is_not_replayed(made):
    replays, _, cache, _ = made
    assert replays.step([1], [1], 2, cache.view(torch.int32)) is None
    assert dict(replays.eager) == {"dtype": 1}


def test_steps_before_the_warm_up_run_eagerly():
    cache = torch.zeros(1)
    replays = Replays(lambda tokens, positions, keys: tokens, RecordingPool(), cache, 2, 10)
    assert replays.step([1], [1], 2, cache) is None
    assert dict(replays.eager) == {"not_captured": 1}


def test_the_pool_is_given_back_after_three_smaller_rounds_in_a_row(made):
    replays, pool, cache, _ = made
    for _ in range(PATIENCE - 1):
        replays.step([1, 1], [1, 1], 2, cache)
        replays.between_requests(idle=True)
    assert pool.renewals == 0
    pool.captures.clear()
    replays.step([1], [1], 2, cache)
    replays.between_requests(idle=True)
    assert pool.renewals == 1
    assert {rows for rows, _ in pool.captures} == {1, 2}


def test_a_large_round_in_between_keeps_it(made):
    replays, pool, cache, _ = made
    for count in (1, 1, 6, 1, 1):
        replays.step([1] * count, [1] * count, 2, cache)
        replays.between_requests(idle=True)
    assert pool.renewals == 0


def test_a_large_batch_after_that_runs_eagerly_until_a_request_ended(made):
    replays, _, cache, _ = made
    for _ in range(PATIENCE):
        replays.step([1], [1], 2, cache)
        replays.between_requests(idle=True)
    assert replays.step([1] * 6, [1] * 6, 2, cache) is None
    assert dict(replays.eager) == {"given_back": 1}
    replays.between_requests(idle=False)
    assert replays.step([1] * 6, [1] * 6, 2, cache) is not None


def test_idle_moments_without_a_step_are_no_rounds(made):
    replays, pool, _, _ = made
    for _ in range(10):
        replays.between_requests(idle=True)
    assert pool.renewals == 0


@given(st.lists(st.integers(1, 8), max_size=30))
def test_what_is_held_covers_the_last_round_and_shrinks_only_after_patience(peaks):
    rounds, held = Rounds(), 8
    for at, peak in enumerate(peaks):
        before, held = held, rounds.over(peak, held)
        assert held >= peak
        if held < before:
            assert all(each < before for each in peaks[max(0, at - PATIENCE + 1) : at + 1])
