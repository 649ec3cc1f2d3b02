"""Whether first-token times have become steady. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

# What READY proves: see docs/warmup.md.
WINDOW = 5
RATIO = 1.25
# Differences below this are the host's scheduling and loopback HTTP, not a cold server: an 8 ms answer may take 12.
SLACK_MS = 5.0
# Only so many samples back count as "best", so that one lucky reading can't keep a server from READY for ever.
BEST_OF = 48
FALL = 1.1


@dataclass(frozen=True)
class Sample:
    """One probe: its length (words) and its time to the first token, or to the whole answer."""

    length: int
    ms: float


def steady(samples: Sequence[Sample]) -> bool:
    """True when the last ``WINDOW`` times are near the best of their length and not falling.

    Near: at most ``RATIO`` times the best, or ``SLACK_MS`` over it. A length seen once has nothing to compare with,
    so every length in the window must have been seen twice.
    """
    window, recent = samples[-WINDOW:], samples[-BEST_OF:]
    seen = Counter(sample.length for sample in recent)
    if len(window) < WINDOW or any(seen[sample.length] < 2 for sample in window):
        return False
    best = {length: min(s.ms for s in recent if s.length == length) for length in seen}
    if not all(_near(sample.ms, best[sample.length]) for sample in window):
        return False
    return not falling([_excess(sample.ms, best[sample.length]) for sample in window])


def falling(ratios: Sequence[float]) -> bool:
    """True when times (each over the best of its length) still go down, one step out of line allowed."""
    rises = sum(1 for earlier, later in combinations(ratios, 2) if later >= earlier)
    return rises <= 1 and ratios[0] > FALL * ratios[-1]


def percentile(values: Sequence[float], share: float) -> float | None:
    """The nearest-rank percentile (``share`` in 0-1); None of nothing."""
    if not values:
        return None
    # 0.07 of 100 is a little more than 7 as a float.
    return sorted(values)[max(0, math.ceil(round(share * len(values), 9)) - 1)]


def _near(ms: float, best_ms: float) -> bool:
    return ms <= RATIO * best_ms or ms - best_ms <= SLACK_MS


def _excess(ms: float, best_ms: float) -> float:
    return ms / best_ms if ms - best_ms > SLACK_MS else 1.0
