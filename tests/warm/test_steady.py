from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.warm.steady import BEST_OF, RATIO, SLACK_MS, WINDOW, Sample, falling, percentile, steady

TIMES = st.floats(min_value=1.0, max_value=10_000.0)


def at_one_length(*times_ms: float) -> list[Sample]:
    return [Sample(8, ms) for ms in times_ms]


def test_equal_times_are_steady():
    assert steady(at_one_length(40, 40, 40, 40, 40))


def test_fewer_than_a_window_is_not_steady():
    assert not steady(at_one_length(40, 40, 40, 40))


def test_a_slow_start_is_forgotten_once_a_window_is_fast():
    assert steady(at_one_length(8000, 4000, 40, 41, 40, 42, 40))
    assert not steady(at_one_length(8000, 4000, 40, 41, 40, 42))


def test_each_length_has_its_own_best():
    assert steady([Sample(8, 40), Sample(30, 90), Sample(8, 41), Sample(30, 91), Sample(8, 40)])


def test_a_length_seen_once_has_nothing_to_compare_with():
    assert not steady([*at_one_length(40, 40, 40, 40), Sample(30, 4000)])


def test_times_that_still_fall_are_not_steady():
    assert not steady(at_one_length(490, 470, 450, 430, 400))
    assert not steady(at_one_length(490, 460, 470, 430, 400))


def test_alternating_times_are_never_steady():
    samples = at_one_length(*([40, 400] * 40))
    assert not any(steady(samples[:end]) for end in range(len(samples)))


def test_one_lucky_reading_does_not_bar_ready_for_ever():
    assert steady(at_one_length(20, *([40] * BEST_OF)))
    assert not steady(at_one_length(20, *([40] * 20)))


def test_differences_below_the_slack_do_not_count():
    assert steady(at_one_length(8.0, 12.9, 9.1, 11.0, 8.5))


@given(TIMES, st.lists(TIMES, max_size=20))
def test_a_constant_tail_twice_the_window_below_all_before_is_steady(ms: float, before: list[float]):
    head = [Sample(8, ms + earlier) for earlier in before]
    assert steady([*head, *at_one_length(*([ms] * WINDOW))])


@given(st.lists(st.tuples(st.sampled_from([6, 14, 30]), TIMES), min_size=WINDOW, max_size=40))
def test_a_steady_window_is_near_the_best_of_each_length(pairs: list[tuple[int, float]]):
    samples = [Sample(length, ms) for length, ms in pairs]
    if steady(samples):
        for length in {sample.length for sample in samples[-WINDOW:]}:
            best = min(s.ms for s in samples[-BEST_OF:] if s.length == length)
            worst = max(s.ms for s in samples[-WINDOW:] if s.length == length)
            assert worst <= max(RATIO * best, best + SLACK_MS)


@given(st.lists(st.tuples(st.sampled_from([6, 14, 30]), TIMES), min_size=WINDOW - 1, max_size=40))
def test_a_last_time_twice_its_best_is_never_steady(pairs: list[tuple[int, float]]):
    samples = [Sample(length, ms) for length, ms in pairs]
    length, best = samples[-1].length, min(s.ms for s in samples[1 - BEST_OF :] if s.length == samples[-1].length)
    assert not steady([*samples, Sample(length, 2 * best + SLACK_MS)])


def test_one_step_out_of_line_is_still_falling_but_two_are_not():
    assert falling([1.24, 1.16, 1.17, 1.05, 1.0])
    assert not falling([1.24, 1.0, 1.2, 1.24, 1.0])
    assert not falling([1.0, 1.0, 1.0, 1.0, 1.0])


@pytest.mark.parametrize(("share", "expected"), [(0.5, 3), (0.99, 5), (0.0, 1), (1.0, 5)])
def test_percentiles_are_values_that_occurred(share: float, expected: float):
    assert percentile([5, 1, 4, 2, 3], share) == expected


def test_the_percentile_of_nothing_is_unknown():
    assert percentile([], 0.5) is None
