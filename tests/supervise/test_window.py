from __future__ import annotations

import pytest

from toolkit.supervise.window import QUIET_S, Sample, opened, progressed


def test_a_window_ends_after_its_length() -> None:
    assert opened(100.0, 900.0).deadline_s == 1000.0


def test_progress_near_the_end_extends_it_until_a_quiet_time_has_passed() -> None:
    window = opened(0.0, 100.0).noted(95.0)
    assert window.deadline_s == 95.0 + QUIET_S


def test_early_progress_extends_nothing() -> None:
    assert opened(0.0, 100.0).noted(10.0).deadline_s == 100.0


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        (Sample(1.0), False),
        (Sample(1.0, log_bytes=1), True),
        (Sample(1.0, resident_bytes=2 * 1024**2), True),
        (Sample(1.0, resident_bytes=4096), False),
        (Sample(1.0, cpu_s=0.5), True),
        (Sample(1.0, cpu_s=0.05), False),
    ],
)
def test_progress_is_a_growing_log_or_memory_or_working_processors(after: Sample, expected: bool) -> None:
    assert progressed(Sample(0.0), after) is expected
