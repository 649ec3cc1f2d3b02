"""How many cores cannot be near their service's GPUs, whatever is given to whom. Counted in bundles of one core."""

from __future__ import annotations

from collections.abc import Iterable

from toolkit.plan.cores import CorePool, CoreWish, Reach
from toolkit.plan.flow import route

Claims = tuple[tuple[int, int], ...]
"""Bundles wanted near any of the localities in a mask: sorted ``(mask, bundles)``."""


def merged(*parts: Iterable[tuple[int, int]]) -> Claims:
    """Claims added up."""
    total: dict[int, int] = {}
    for part in parts:
        for mask, bundles in part:
            total[mask] = total.get(mask, 0) + bundles
    return tuple(sorted(total.items()))


def claims(bundles: int, reach: Reach) -> Claims:
    """What a service of so many bundles claims: one near each of its GPUs, the rest near any of them."""
    if not bundles:
        return ()
    union = sum(1 << locality for locality in reach.localities)
    if bundles < len(reach.localities):
        return merged([(union, bundles)])
    one_each = [(1 << locality, 1) for locality in reach.localities]
    rest = 0 if reach.anywhere else bundles - len(one_each)
    return merged(one_each, [(union, rest)] if rest else [])


class RemoteCount:
    """Counts the bundles of claims that no assignment of the pool's cores can place nearby."""

    def __init__(self, pool: CorePool, localities: int, autos_get_one: bool) -> None:
        self._pool = pool
        self._autos_get_one = autos_get_one
        self._known: dict[Claims, int] = {}
        self._masks = [region.mask for region in pool.regions]
        self._bundles = [pool.bundles(region) for region in pool.regions]
        regions = list(zip(self._masks, self._bundles, strict=True))
        self.bundles_near = tuple(
            sum(bundles for mask, bundles in regions if mask >> locality & 1) for locality in range(localities)
        )

    def claims(self, wish: CoreWish, reach: Reach) -> Claims:
        """What the wish claims of the pool; CPUs named exactly claim nothing."""
        if wish.exact is not None:
            return ()
        bundles = int(self._autos_get_one) if wish.cpus is None else self._pool.bundles_for(wish.cpus)
        return claims(bundles, reach)

    def fixed(self, wish: CoreWish, reach: Reach, near: tuple[frozenset[int], ...]) -> int:
        """Bundles of CPUs named exactly that are not near the devices."""
        if wish.exact is None or reach.anywhere:
            return 0
        local = frozenset().union(*(near[locality] for locality in reach.localities))
        return self._pool.bundles_for(len(set(wish.exact) - local))

    def unplaceable(self, wanted: Claims) -> int:
        """Bundles that have to be remote."""
        if wanted not in self._known:
            demands = [(n, [r for r, near in enumerate(self._masks) if near & mask]) for mask, n in wanted]
            sent = route(demands, self._bundles)
            self._known[wanted] = sum(n for _, n in wanted) - sum(map(sum, sent))
        return self._known[wanted]
