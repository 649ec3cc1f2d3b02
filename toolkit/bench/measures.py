"""The quantities of a cold start, from samples. Pure."""

from __future__ import annotations

import statistics
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from toolkit.warm import steady

# What is measured, and against which target: see docs/bench.md.
JITTER_WINDOW_S = 5.0
BIN_S = 0.25
NEARLY = 0.8
P99_NEEDS = 100


@dataclass(frozen=True)
class At:
    """One reading: seconds of one clock, and a value."""

    s: float
    value: float


def percentile(values: Sequence[float], share: float) -> float | None:
    """The nearest-rank percentile; None of nothing, and where ``share`` needs more values than there are."""
    return steady.percentile(values, share) if len(values) >= needed(share) else None


def needed(share: float) -> int:
    """How many values a percentile needs to be more than the largest of a few: 100 for the 99th."""
    return P99_NEEDS if share >= 0.99 else 1


def jitter(samples: Sequence[At]) -> float | None:
    """Standard deviation over mean of the last ``JITTER_WINDOW_S``; None with under two readings, or of nothing."""
    if len(samples) < 2:
        return None
    last_s = samples[-1].s
    values = [sample.value for sample in samples if sample.s > last_s - JITTER_WINDOW_S]
    mean = statistics.fmean(values)
    return statistics.pstdev(values) / mean if mean > 0 else None


def climb_per_s(samples: Sequence[At]) -> float | None:
    """How fast a reading climbs from its lowest to its highest after that, a second; None where it never does.

    The readings' own refresh bounds it: what climbs within one step counts as one step.
    """
    if len(samples) < 2:
        return None
    lowest = min(samples, key=lambda sample: sample.value)
    highest = max((s for s in samples if s.s >= lowest.s), key=lambda sample: (sample.value, -sample.s))
    rise = highest.value - lowest.value
    return rise / (highest.s - lowest.s) if rise > 0 else None


def rates(arrivals_s: Sequence[float], until_s: float) -> tuple[At, ...]:
    """How many arrivals a second there were in each whole bin from 0 on, at the bin's end. ``arrivals_s`` ascends."""
    bins = int(until_s / BIN_S + 1e-9)
    edges = [bisect_right(arrivals_s, number * BIN_S) for number in range(bins + 1)]
    return tuple(At((n + 1) * BIN_S, (edges[n + 1] - edges[n]) / BIN_S) for n in range(bins))


def steady_rate(found: Sequence[At]) -> float | None:
    """The median of the second half; None of nothing."""
    half = [each.value for each in found[len(found) // 2 :]]
    return statistics.median(half) if half else None


def time_to_nearly(found: Sequence[At]) -> float | None:
    """Seconds to the end of the first bin that reaches ``NEARLY`` of the steady rate; None where there is no rate."""
    wanted = steady_rate(found)
    if not wanted:
        return None
    return next((each.s for each in found if each.value >= NEARLY * wanted), None)
