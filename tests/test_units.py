from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit import units


@pytest.mark.parametrize(
    ("text", "count"),
    [("60GiB", 60 * 2**30), ("512 MB", 512 * 10**6), ("1.5KiB", 1536), ("0B", 0), ("9007199254740993B", 2**53 + 1)],
)
def test_sizes_are_exact(text: str, count: int) -> None:
    assert units.parse_bytes(text) == count


@pytest.mark.parametrize("text", ["60", "60G", "GiB", "-1GiB", "1e3B", "", "٣GiB", "9" * 400 + "GiB"])
def test_a_size_needs_a_plain_number_and_a_known_unit(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        units.parse_bytes(text)


@given(st.integers(0, 2**60))
def test_a_formatted_size_reads_back_within_its_decimal(count: int) -> None:
    assert units.parse_bytes(units.format_bytes(count)) == pytest.approx(count, rel=0.06)


@given(st.integers(0, 10**6), st.sampled_from(["B", "KiB", "MiB", "GiB", "TiB"]))
def test_binary_sizes_scale_by_1024(number: int, unit: str) -> None:
    assert units.parse_bytes(f"{number}{unit}") == number * 1024 ** ["B", "KiB", "MiB", "GiB", "TiB"].index(unit)


@pytest.mark.parametrize(
    ("text", "seconds"), [("30s", 30), ("10min", 600), ("250ms", 0.25), ("1h", 3600), ("1.5 s", 1.5)]
)
def test_durations_are_seconds(text: str, seconds: float) -> None:
    assert units.parse_duration_s(text) == seconds


@pytest.mark.parametrize("text", ["30", "30 sec", "1m", "s", "-1s"])
def test_a_duration_needs_a_known_unit(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        units.parse_duration_s(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.85, "850 ms"), (0.9996, "1.0 s"), (12.34, "12.3 s"), (59.96, "1 min 00 s"), (245, "4 min 05 s")],
)
def test_durations_for_people(seconds: float, text: str) -> None:
    assert units.format_duration(seconds) == text


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("", ()),
        ("3", (3,)),
        ("0-2,8", (0, 1, 2, 8)),
        ("0-10:2/4", (0, 1, 4, 5, 8, 9)),
        (" 1 , 0", (0, 1)),
        ("1,1", (1,)),
    ],
)
def test_cpu_lists_are_the_kernels(text: str, cpus: tuple[int, ...]) -> None:
    assert units.parse_cpu_list(text) == cpus


@pytest.mark.parametrize("text", ["3-1", "a", "1-", "-1", "0-70000", "0-3:1/0", "9" * 5000])
def test_what_is_no_cpu_list_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a CPU list"):
        units.parse_cpu_list(text)


@given(st.sets(st.integers(0, units.MAX_CPU - 1), max_size=40))
def test_a_cpu_list_survives_writing_and_reading(cpus: set[int]) -> None:
    assert units.parse_cpu_list(units.format_cpu_list(cpus)) == tuple(sorted(cpus))


@given(st.text(max_size=20))
def test_any_text_is_read_or_refused_with_value_error(text: str) -> None:
    for parse in (units.parse_bytes, units.parse_duration_s, units.parse_cpu_list):
        with contextlib.suppress(ValueError):
            parse(text)
