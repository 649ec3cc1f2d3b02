"""Which CPUs each service gets, once its GPUs are known: whole cores, near ones first, no core twice."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from toolkit.host.model import Core
from toolkit.plan import autos
from toolkit.plan.cores import CorePool, CoreWish, Reach
from toolkit.plan.flow import route
from toolkit.plan.remote import claims
from toolkit.plan.stock import Stock, cpus_of


@dataclass(frozen=True)
class Claimant:
    """A service's wish, what is near its GPUs, and how far each node is from them."""

    wish: CoreWish
    reach: Reach
    distance: Callable[[int | None], int]

    @property
    def name(self) -> str:
        return self.wish.name

    @property
    def mask(self) -> int:
        return sum(1 << locality for locality in self.reach.localities)

    @property
    def wanted(self) -> int:
        """CPUs it cannot do without; an auto does with one."""
        return self.wish.cpus or 1

    def may_use(self, mask: int) -> bool:
        """Whether cores of a region with this mask are not remote for it."""
        return self.reach.anywhere or bool(mask & self.mask)


@dataclass(frozen=True)
class CoreGrant:
    """CPUs of one service; ``remote``: whole cores among them that are not near its GPUs.

    ``shared``: others have the same CPUs. ``split``: others have the other threads of one of its cores.
    """

    cpus: tuple[int, ...]
    remote: int = 0
    shared: bool = False
    split: bool = False


def with_splits(grants: Mapping[str, CoreGrant], cores: Sequence[Core]) -> dict[str, CoreGrant]:
    """The grants, with those marked that have threads of one core with another."""
    core_of = {cpu: i for i, core in enumerate(cores) for cpu in core.cpus}
    owners: dict[int, set[str]] = {}
    for name, grant in grants.items():
        for cpu in grant.cpus:
            owners.setdefault(core_of[cpu], set()).add(name)
    split = {name for names in owners.values() if len(names) > 1 for name in names}
    return {name: replace(grant, split=name in split and not grant.shared) for name, grant in grants.items()}


def share_out(claimants: Sequence[Claimant], pool: CorePool, quota_left: int | None) -> dict[str, CoreGrant] | None:
    """CPUs for every service whose wish is a number or auto; None when whole cores do not suffice.

    ``quota_left``: CPUs of the cgroup's quota that CPUs named exactly leave. Autos divide what numbers leave; with
    fewer cores than autos they share them.
    """
    numbers = [c for c in claimants if c.wish.cpus is not None]
    others = [c for c in claimants if c.wish.is_auto]
    if autos_get_one(pool, [c.wish for c in claimants], quota_left):
        stock = _stocked(numbers, others, pool)
        if stock is not None:
            autos.divide(others, stock, None if quota_left is None else quota_left - stock.given_cpus())
            return {c.name: _grant(c, stock) for c in claimants}
    stock = _stocked(numbers, [], pool)
    if stock is None or (others and not any(stock.free)):
        return None
    shared = {c.name: CoreGrant(autos.common(c, stock, quota_left), shared=True) for c in others}
    return {c.name: _grant(c, stock) for c in numbers} | shared


def autos_get_one(pool: CorePool, wishes: Sequence[CoreWish], quota_left: int | None) -> bool:
    """Whether numbers leave every auto a core of its own, within the quota."""
    count = sum(wish.is_auto for wish in wishes)
    numbers = [wish.cpus for wish in wishes if wish.cpus is not None]
    if quota_left is not None and (quota_left - sum(numbers)) // pool.width < count:
        return False
    return pool.core_count - sum(map(pool.bundles_for, numbers)) >= count


def _stocked(numbers: Sequence[Claimant], one_core: Sequence[Claimant], pool: CorePool) -> Stock | None:
    """The stock after every number and, for ``one_core``, a core each was taken; None when that cannot be."""
    return _near_first([*numbers, *one_core], pool) or _tight([*numbers, *one_core], pool)


def _near_first(claimants: Sequence[Claimant], pool: CorePool) -> Stock | None:
    """Near cores by maximum flow, then what is still wanted from the nearest regions, then whoever has no GPU."""
    stock = Stock(pool)
    local = [c for c in claimants if c.reach.localities]
    for claimant, bundles in zip(local, _routed(local, pool), strict=True):
        for region, count in enumerate(bundles):
            missing = claimant.wanted - stock.given_cpus(claimant.name)
            if count:
                stock.take(claimant.name, region, max(1, min(count * pool.width, missing)))
    needed = union_of(local)
    for claimant in sorted(claimants, key=lambda c: (not c.reach.localities, c.wish.is_auto)):
        if not _fill(claimant, stock, needed):
            return None
    for claimant in local:
        _touch_each(claimant, stock)
    return stock


def union_of(claimants: Sequence[Claimant]) -> int:
    """The localities that any of them is near."""
    mask = 0
    for claimant in claimants:
        mask |= claimant.mask
    return mask


def _routed(local: Sequence[Claimant], pool: CorePool) -> list[list[int]]:
    """Bundles of each region for each claimant."""
    demands, owners = [], []
    for i, claimant in enumerate(local):
        for mask, bundles in claims(pool.bundles_for(claimant.wanted), claimant.reach):
            parts = _evenly(bundles, pool, mask, claimant.reach)
            demands += parts
            owners += [i] * len(parts)
    sent = route(demands, [pool.bundles(region) for region in pool.regions])
    totals = [[0] * len(pool.regions) for _ in local]
    for owner, row in zip(owners, sent, strict=True):
        totals[owner] = [a + b for a, b in zip(totals[owner], row, strict=True)]
    return totals


def _evenly(bundles: int, pool: CorePool, mask: int, reach: Reach) -> list[tuple[int, list[int]]]:
    """A claim in parts that each prefer the cores near another one of the GPUs."""
    near = [r for r, region in enumerate(pool.regions) if region.mask & mask]
    bits = [1 << locality for locality in reach.localities if mask >> locality & 1]
    return [
        (
            bundles // len(bits) + (i < bundles % len(bits)),
            sorted(near, key=lambda r: not pool.regions[r].mask & bit),
        )
        for i, bit in enumerate(bits)
    ]


def _fill(claimant: Claimant, stock: Stock, needed: int) -> bool:
    """Takes what a wish still lacks, from the best regions on; False when nothing is left to take."""
    while (missing := claimant.wanted - stock.given_cpus(claimant.name)) > 0:
        regions = [r for r, cores in enumerate(stock.free) if cores]
        if not regions:
            return False
        best = min(regions, key=lambda r: _preference(claimant, stock, r, missing, needed))
        stock.take(claimant.name, best, missing)
    return True


def _preference(claimant: Claimant, stock: Stock, r: int, missing: int, needed: int) -> tuple[object, ...]:
    """Near its GPUs; where it fits whole; not near the GPUs of others; near by distance; where most is left."""
    region, free = stock.pool.regions[r], cpus_of(stock.free[r])
    near = bool(region.mask & claimant.mask)
    others = bool(region.mask & needed)
    return (not near, len(free) < missing, others, claimant.distance(region.node), -len(free), r)


def _touch_each(claimant: Claimant, stock: Stock) -> None:
    """One more core near each GPU that has none yet, where one is left."""
    for locality in claimant.reach.localities:
        bit = 1 << locality
        if not any(core.mask & bit for core in stock.given.get(claimant.name, ())):
            region = next((r for r, cores in enumerate(stock.free) if cores and cores[0].mask & bit), None)
            if region is not None:
                stock.take(claimant.name, region, 1)


def _tight(claimants: Sequence[Claimant], pool: CorePool) -> Stock | None:
    """Cores of unlike width, packed without waste: wishes that end in a narrow core choose before the others."""
    stock = Stock(pool)
    for claimant in sorted(claimants, key=lambda c: (c.wish.is_auto, c.wanted % pool.width == 0)):
        if stock.take_anywhere(claimant.name, claimant.wanted) < claimant.wanted:
            return None
    return stock


def _grant(claimant: Claimant, stock: Stock) -> CoreGrant:
    cores = stock.given.get(claimant.name, [])
    remote = 0 if claimant.reach.anywhere else sum(not core.mask & claimant.mask for core in cores)
    return CoreGrant(cpus_of(cores), remote)
