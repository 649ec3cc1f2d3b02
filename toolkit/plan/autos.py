"""What is left, divided among the services that leave their number of CPUs to us."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from toolkit.plan.cores import Region
from toolkit.plan.stock import Stock, cpus_of


class Auto(Protocol):
    """A service that takes what it gets."""

    @property
    def name(self) -> str: ...

    @property
    def mask(self) -> int: ...

    def may_use(self, mask: int) -> bool:
        """Whether cores of a region with this mask are not remote for it."""


def divide(autos: Sequence[Auto], stock: Stock, cpus_left: int | None) -> None:
    """Gives what is left, a core at a time to whoever has least and can use one; ``cpus_left`` bounds it."""
    counts = [len(cores) for cores in stock.free]
    has = {auto.name: stock.given_cpus(auto.name) for auto in autos}
    turns: dict[tuple[str, int], int] = {}
    width = stock.pool.width
    steps = sum(counts) if cpus_left is None else min(sum(counts), max(0, cpus_left // width))
    for _ in range(steps):
        turn = _next(autos, stock.pool.regions, counts, has)
        if turn is None:
            break
        name, region = turn
        counts[region] -= 1
        has[name] += width
        turns[turn] = turns.get(turn, 0) + 1
    for (name, region), count in turns.items():
        stock.take_cores(name, region, count)


def _next(
    autos: Sequence[Auto], regions: Sequence[Region], counts: Sequence[int], has: Mapping[str, int]
) -> tuple[str, int] | None:
    """Whose turn it is, and from which region: one that fewest others want, with most left."""
    for auto in sorted(autos, key=lambda one: has[one.name]):
        usable = [r for r, left in enumerate(counts) if left and auto.may_use(regions[r].mask)]
        if usable:
            rivals = [sum(other.mask & regions[r].mask != 0 for other in autos if other is not auto) for r in usable]
            best = min(zip(rivals, usable, strict=True), key=lambda entry: (entry[0], -counts[entry[1]], entry[1]))
            return auto.name, best[1]
    return None


def common(auto: Auto, stock: Stock, quota_left: int | None) -> tuple[int, ...]:
    """The CPUs that all autos share: of those left the near ones, or all where none is near."""
    left = [(core, region.mask) for region, cores in zip(stock.pool.regions, stock.free, strict=True) for core in cores]
    near = [core for core, mask in left if auto.may_use(mask)]
    cores = near or [core for core, _ in left]
    if quota_left is None:
        return cpus_of(cores)
    return cpus_of(cores[: max(1, (quota_left - stock.given_cpus()) // stock.pool.width)])
