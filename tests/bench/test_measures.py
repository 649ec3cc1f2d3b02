from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.bench import measures
from toolkit.bench.measures import At

times = st.floats(0, 1e4, allow_nan=False)


@given(st.lists(times, min_size=1, max_size=50), st.sampled_from([0.5, 0.9]))
def test_a_percentile_is_one_of_the_values_with_enough_at_or_below(values, share):
    found = measures.percentile(values, share)
    assert found in values
    assert sum(value <= found for value in values) >= share * len(values) - 1e-6


def test_the_99th_percentile_needs_a_hundred_values():
    assert measures.percentile([1.0] * 99, 0.99) is None
    assert measures.percentile([*range(1, 101)], 0.99) == 99


def test_the_99th_of_a_hundred_is_not_moved_by_rounding():
    assert measures.percentile([*map(float, range(1, 101))], 0.9) == 90.0


def test_nothing_has_no_percentile():
    assert measures.percentile([], 0.5) is None


def test_jitter_is_deviation_over_mean_of_the_last_window():
    early = [At(s / 10, 1.0) for s in range(10)]
    late = [At(10 + s / 10, value) for s, value in enumerate([90.0, 110.0] * 20)]
    assert measures.jitter([*early, *late]) == pytest.approx(0.1)


def test_a_single_reading_has_no_jitter():
    assert measures.jitter([At(0, 5.0)]) is None


def test_memory_that_stands_still_has_none():
    assert measures.jitter([At(s / 10, 7.0) for s in range(60)]) == 0.0


def test_a_climb_is_from_the_lowest_to_the_highest_after_it():
    seen = [At(0, 50), At(1, 0), At(2, 30), At(3, 90), At(4, 90)]
    assert measures.climb_per_s(seen) == pytest.approx(45.0)


def test_what_only_falls_does_not_climb():
    assert measures.climb_per_s([At(0, 50), At(1, 20)]) is None


@given(st.lists(st.floats(0.001, 10), max_size=200))
def test_rates_count_every_arrival_once(arrivals):
    found = measures.rates(sorted(arrivals), 10.0)
    assert sum(each.value for each in found) * measures.BIN_S == pytest.approx(len(arrivals))


def test_nearly_steady_is_the_first_bin_of_four_fifths():
    found = measures.rates([0.3, *(0.5 + n / 100 for n in range(350))], 4.0)
    assert statistics.median([each.value for each in found[8:]]) == measures.steady_rate(found)
    assert measures.time_to_nearly(found) == 0.75


def test_without_arrivals_there_is_no_time_to_anything():
    assert measures.time_to_nearly(measures.rates([], 4.0)) is None
