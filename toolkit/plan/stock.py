"""Cores that are still to be had, region by region, and who took which."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from toolkit.plan.cores import CorePool, PoolCore


class Stock:
    """A pool being shared out."""

    def __init__(self, pool: CorePool) -> None:
        self.pool = pool
        self.free: list[list[PoolCore]] = [list(region.cores) for region in pool.regions]
        self.given: dict[str, list[PoolCore]] = {}

    def given_cpus(self, name: str | None = None) -> int:
        """CPUs that a service took, or that all took."""
        return sum(len(core.cpus) for key, cores in self.given.items() if name in {None, key} for core in cores)

    def take(self, name: str, region: int, cpus: int) -> int:
        """Gives a region's cores for so many CPUs, or all of them; how many CPUs that were."""
        return self._hand_over(name, cover(self.free[region], cpus, self.pool.width))

    def take_cores(self, name: str, region: int, count: int) -> None:
        """Gives so many cores of a region."""
        self._hand_over(name, self.free[region][:count])

    def take_anywhere(self, name: str, cpus: int) -> int:
        """The same as ``take``, from all regions as if they were one."""
        return self._hand_over(name, cover([core for cores in self.free for core in cores], cpus, self.pool.width))

    def _hand_over(self, name: str, cores: Sequence[PoolCore]) -> int:
        gone = {core.cpus for core in cores}
        self.free = [[core for core in region if core.cpus not in gone] for region in self.free]
        self.given.setdefault(name, []).extend(cores)
        return len(cpus_of(cores))


def cpus_of(cores: Iterable[PoolCore]) -> tuple[int, ...]:
    """All CPUs of the cores, sorted."""
    return tuple(sorted(cpu for core in cores for cpu in core.cpus))


def cover(cores: Sequence[PoolCore], cpus: int, width: int) -> list[PoolCore]:
    """Cores with at least so many CPUs, or all of them; wide ones, and a narrow one where that does for the end."""
    wide = [core for core in _by_cache(cores, cpus) if len(core.cpus) == width]
    narrow = sorted((core for core in cores if len(core.cpus) < width), key=lambda core: len(core.cpus))
    end = next((core for core in narrow if len(core.cpus) >= cpus % width), None) if cpus % width else None
    chosen, missing = ([], cpus) if end is None else ([end], cpus - len(end.cpus))
    for core in (*wide, *(core for core in narrow if core is not end)):
        if missing <= 0:
            break
        chosen.append(core)
        missing -= len(core.cpus)
    return chosen


def _by_cache(cores: Sequence[PoolCore], cpus: int) -> list[PoolCore]:
    """Cores in the order to take them: the smallest cache group that suffices, else the largest ones first."""
    groups: dict[int | None, list[PoolCore]] = {}
    for core in cores:
        groups.setdefault(core.cache_group, []).append(core)
    sizes = [(len(cpus_of(group)), i) for i, group in enumerate(groups.values())]
    enough = sorted(entry for entry in sizes if entry[0] >= cpus)
    rest = sorted((-size, i) for size, i in sizes if size < cpus)
    ordered = list(groups.values())
    return [core for _, i in (*enough, *rest) for core in ordered[i]]
