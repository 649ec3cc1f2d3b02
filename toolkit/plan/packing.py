"""How many devices a partial choice must end up using, at least."""

from __future__ import annotations

from collections.abc import Sequence

from toolkit.plan.demand import Demand
from toolkit.plan.groups import EMPTY, SHARED, Holder


def devices_at_least(holders: Sequence[Holder], rest: Sequence[Demand]) -> int:
    """Devices in use now, one for each that is wanted alone, and those that sharers cannot do without."""
    used = sum(1 for holder in holders if holder.state != EMPTY)
    alone = sum(demand.count for demand in rest if demand.alone)
    return used + alone + _for_sharers(holders, [demand for demand in rest if not demand.alone])


def _for_sharers(holders: Sequence[Holder], sharers: Sequence[Demand]) -> int:
    """Devices to open for them: by volume, by their number, and by those of which no two fit on one device."""
    if not sharers:
        return 0
    open_bytes = [holder.free_bytes or 0 for holder in holders if holder.state == SHARED]
    largest = max((holder.free_bytes or 0 for holder in holders if holder.state == EMPTY), default=0)
    widest = max(demand.count for demand in sharers) - len(open_bytes)
    if any(holder.free_bytes is None for holder in holders) or largest <= 0:
        return max(0, widest)
    volume = sum(demand.count * demand.need_bytes for demand in sharers) - sum(open_bytes)
    bulky = [demand for demand in sharers if 2 * demand.need_bytes > largest]
    bulky_bytes = min((demand.need_bytes for demand in bulky), default=0)
    bulky_open = sum(max(1, free // bulky_bytes) for free in open_bytes if free >= bulky_bytes) if bulky else 0
    return max(0, widest, -(-volume // largest), sum(demand.count for demand in bulky) - bulky_open)
