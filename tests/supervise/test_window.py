from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.supervise.window import BUSY_S, QUIET_S, Sample, Stall, Window, grew, lowest, opened

MIB = 1024**2
LENGTH_S = 600.0
SPIN = 0.5  # processor seconds at each look, two looks a second: one core


def watched(window: Window, seconds: float, **per_look: Any) -> Window:
    """The window after looks, twice a second, until it ends or so long; each look adds this."""
    sample = replace(window.low, compiling=bool(per_look.pop("compiling", False)))
    until_s = sample.at_s + seconds
    while sample.at_s < min(until_s, window.deadline_s):
        grown = {name: (getattr(sample, name) or 0) + step for name, step in per_look.items()}
        sample = replace(sample, at_s=sample.at_s + 0.5, **grown)
        window = window.looked(sample)
    return window


def after(window: Window) -> float:
    """When it ended, since it was opened."""
    return window.low.at_s - window.opened_s


def test_a_start_that_stands_still_ends_after_the_quiet_time_however_long_its_window_is() -> None:
    assert after(watched(opened(Sample(100.0), LENGTH_S), 10_000.0)) == QUIET_S


def test_a_window_that_is_shorter_than_the_quiet_time_ends_by_itself() -> None:
    assert after(watched(opened(Sample(0.0), 10.0), 10_000.0)) == 10.0


def test_a_quiet_time_that_a_person_wrote_is_kept() -> None:
    assert after(watched(opened(Sample(0.0), 10.0, 90.0), 10_000.0)) == 90.0


@pytest.mark.parametrize(
    "grown",
    [
        {"log_bytes": 1},
        {"resident_bytes": 128 * 1024},
        {"disk_bytes": 128 * 1024},
        {"gpu_bytes": 128 * 1024},
        {"compilers": 1},
    ],
    ids=lambda grown: next(iter(grown)),
)
def test_what_grows_slowly_but_for_ever_is_progress_for_ever(grown: dict[str, int]) -> None:
    window = watched(opened(Sample(0.0, gpu_bytes=0), 60.0), 10_000.0, **grown)
    assert after(window) == 10_000.0
    assert after(watched(window, 10_000.0)) <= 10_000.0 + 2 * QUIET_S


@pytest.mark.parametrize(
    "grown", [{"resident_bytes": 8 * 1024}, {"disk_bytes": 8 * 1024}, {"io_bytes": 8 * 1024}, {"cpu_s": 0.01}]
)
def test_what_answering_our_probes_takes_is_no_progress(grown: dict[str, Any]) -> None:
    assert after(watched(opened(Sample(0.0), LENGTH_S), 10_000.0, **grown)) == QUIET_S


def test_processors_that_work_are_believed_for_a_bounded_time_since_they_may_spin() -> None:
    spun = watched(opened(Sample(0.0), 30.0), 10_000.0, cpu_s=SPIN)
    assert BUSY_S < after(spun) <= BUSY_S + QUIET_S
    assert spun.stall(spun.low.at_s) == Stall(after(spun), spins=True)
    written = watched(opened(Sample(0.0), 60.0, busy_s=60.0), 10_000.0, cpu_s=SPIN)
    assert 60.0 < after(written) <= 60.0 + QUIET_S


def test_reads_that_no_disk_sees_are_believed_as_long_as_processors_are() -> None:
    polled = watched(opened(Sample(0.0), 30.0), 10_000.0, io_bytes=MIB)
    assert BUSY_S < after(polled) <= BUSY_S + QUIET_S


def test_a_fifteenth_of_a_core_is_enough_where_many_share_the_processors() -> None:
    assert after(watched(opened(Sample(0.0), LENGTH_S), 500.0, cpu_s=0.5 / 15)) == 500.0


def test_a_compiler_that_runs_counts_inside_the_window() -> None:
    compiled = watched(opened(Sample(0.0), 60.0), 10_000.0, compiling=True)
    assert after(compiled) == 60.0 + QUIET_S


def test_an_answer_not_yet_counts_inside_the_window() -> None:
    window = opened(Sample(0.0), 60.0)
    assert window.put_off(59.0).deadline_s == 59.0 + QUIET_S
    assert window.put_off(61.0) == window


def test_a_step_of_the_program_counts_at_any_time() -> None:
    assert opened(Sample(0.0), 60.0).noted(500.0).deadline_s == 500.0 + QUIET_S


def test_work_of_processes_that_ended_hides_no_later_work() -> None:
    window = opened(Sample(0.0, cpu_s=100.0, io_bytes=900 * MIB, resident_bytes=900 * MIB), LENGTH_S)
    fell = window.looked(Sample(1.0))
    assert fell.progress_s == 0.0
    for grown in ({"cpu_s": 5.0}, {"io_bytes": 5 * MIB}, {"resident_bytes": 5 * MIB}):
        assert fell.looked(Sample(2.0, **grown)).progress_s == 2.0


def test_memory_of_a_gpu_that_was_not_asked_before_did_not_grow() -> None:
    assert not grew(Sample(0.0), Sample(1.0, gpu_bytes=5 * MIB))
    known = lowest(Sample(0.0), Sample(1.0, gpu_bytes=5 * MIB))
    assert not grew(known, Sample(2.0))
    assert grew(lowest(known, Sample(2.0)), Sample(3.0, gpu_bytes=10 * MIB))


def test_time_in_which_nobody_looked_is_not_held_against_the_service() -> None:
    window = watched(opened(Sample(0.0), LENGTH_S), 20.0)
    paused = window.looked(Sample(3620.0))
    assert paused.deadline_s - 3620.0 == pytest.approx(QUIET_S - 20.0)
    assert after(watched(paused, 10_000.0)) == pytest.approx(QUIET_S)


def test_a_stall_tells_since_when_nothing_has_moved() -> None:
    window = watched(opened(Sample(0.0), 120.0), 40.0, log_bytes=1)
    for second in range(40, 120):
        window = window.put_off(float(second)).looked(replace(window.low, at_s=float(second)))
    ended = watched(window, 10_000.0)
    assert ended.stall(ended.low.at_s) == Stall(ended.low.at_s - 40.0)
    assert (window.moved, opened(Sample(0.0), 1.0).moved) == (True, False)


LOOKS = st.builds(
    Sample,
    **{
        name: st.integers(0, 100 * MIB)
        for name in ("log_bytes", "resident_bytes", "io_bytes", "disk_bytes", "compilers")
    },
    at_s=st.floats(0.01, 4.0),
    cpu_s=st.floats(0.0, 100.0),
    gpu_bytes=st.none() | st.integers(0, 100 * MIB),
    compiling=st.booleans(),
)


@given(st.lists(LOOKS, max_size=30), st.floats(1.0, 100.0))
def test_a_window_never_ends_before_its_quiet_time_and_never_outlives_it_without_progress(
    looks: list[Sample], length_s: float
) -> None:
    window, now_s = opened(Sample(0.0), length_s), 0.0
    for look in looks:
        now_s += look.at_s
        window = window.looked(replace(look, at_s=now_s))
        assert window.progress_s <= now_s
        assert window.deadline_s >= window.quiet_s
        assert window.low.at_s == now_s
        assert all(
            getattr(window.low, field.name) is None or getattr(window.low, field.name) >= 0 for field in fields(Sample)
        )
    still = replace(window.low, compiling=False)
    for step in range(1, 400):
        window = window.looked(replace(still, at_s=now_s + step * 0.5))
    assert window.deadline_s <= now_s + window.quiet_s
