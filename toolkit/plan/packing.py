"""How many devices a partial choice must end up using, at least."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from toolkit.plan.demand import Demand
from toolkit.plan.groups import EMPTY, SHARED, Holder


@dataclass(frozen=True)
class Rest:
    """Demands still to be placed: devices wanted alone, and the sharers' sizes, ascending, with their running sums."""

    alone: int
    widest: int
    sizes: tuple[int, ...]
    filled: tuple[int, ...]


def rest_of(demands: Sequence[Demand]) -> Rest:
    """What these demands add up to."""
    sharers = [demand for demand in demands if not demand.alone]
    sizes = sorted(size for demand in sharers for size in [demand.need_bytes] * demand.count)
    alone = sum(demand.count for demand in demands if demand.alone)
    return Rest(alone, max((d.count for d in sharers), default=0), tuple(sizes), tuple(accumulate(sizes)))


def devices_at_least(holders: Sequence[Holder], rest: Rest) -> int:
    """Devices in use now, one for each that is wanted alone, and those that sharers cannot do without."""
    empty = [free for free, state in holders if state == EMPTY]
    used = len(holders) - len(empty)
    if not rest.sizes:
        return used + rest.alone
    shared = [free for free, state in holders if state == SHARED and free is not None]
    return used + rest.alone + max(0, rest.widest - len(shared), _to_open(empty, shared, rest))


def _to_open(empty: Sequence[int | None], shared: Sequence[int], rest: Rest) -> int:
    """Devices to open: by volume, by number, and by those of which no two fit on one device."""
    largest = 0
    for free in empty:
        if free is None:
            return 0
        largest = max(largest, free)
    at_most = bisect_right(rest.filled, largest)
    if not at_most or largest <= 0:
        return 0
    volume = rest.filled[-1] - sum(shared)
    waiting = len(rest.sizes) - sum(bisect_right(rest.filled, free) for free in shared)
    return max(-(-volume // largest), -(-waiting // at_most), _by_bulk(largest, shared, rest.sizes))


def _by_bulk(largest: int, shared: Sequence[int], sizes: Sequence[int]) -> int:
    first = bisect_right(sizes, largest // 2)
    if first == len(sizes):
        return 0
    return len(sizes) - first - sum(free // sizes[first] for free in shared)


def devices_for_cores(
    holders: Sequence[Holder], localities: Sequence[int | None], bundles: Sequence[int], needed: int, at_least: int
) -> int:
    """Devices in use when so many bundles of cores are near them; ``bundles``: those of each locality."""
    touched = {localities[p] for p, holder in enumerate(holders) if holder.state != EMPTY}
    used = sum(1 for holder in holders if holder.state != EMPTY)
    missing = needed - sum(bundles[locality] for locality in touched if locality is not None)
    openable = {localities[p] for p, holder in enumerate(holders) if holder.state == EMPTY} - touched - {None}
    for more in sorted((bundles[locality] for locality in openable if locality is not None), reverse=True):
        if missing <= 0:
            break
        missing -= more
        used += 1
    return max(at_least, used)
