"""The part of a service's CPUs that each of its ranks gets. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from toolkit.host.model import Core

Unit = tuple[int, ...]


def split(cpus: Sequence[int], cores: Sequence[Core], nodes: Sequence[int | None]) -> tuple[tuple[int, ...], ...]:
    """CPUs of each rank, sorted; ``nodes``: where its device is, None: unknown.

    Whole cores, as evenly as they go, those beside the rank's device first. With fewer cores than ranks siblings are
    parted, with fewer CPUs than ranks they are shared: no rank is left without.
    """
    ranks = len(nodes)
    units = _units(cpus, cores, ranks)
    if not units or len(units) < ranks:
        return tuple((cpus[rank % len(cpus)],) for rank in range(ranks)) if cpus else ()
    quotas = [len(units) // ranks + (rank < len(units) % ranks) for rank in range(ranks)]
    given: list[list[Unit]] = [[] for _ in nodes]
    left = list(units)
    for node in dict.fromkeys(node for node in nodes if node is not None):
        beside = [rank for rank, home in enumerate(nodes) if home == node]
        _deal([unit for unit in left if units[unit] == node], beside, quotas, given)
        left = [unit for unit in left if not any(unit in mine for mine in given)]
    for rank, quota in enumerate(quotas):
        missing = quota - len(given[rank])
        given[rank] += left[:missing]
        left = left[missing:]
    return tuple(tuple(sorted(cpu for unit in mine for cpu in unit)) for mine in given)


def _units(cpus: Sequence[int], cores: Sequence[Core], ranks: int) -> dict[Unit, int | None]:
    """What is dealt, with its NUMA node: whole cores, or single CPUs where there are too few."""
    mine = set(cpus)
    known = {cpu: core for core in cores for cpu in core.cpus}
    units: dict[Unit, int | None] = {}
    for cpu in cpus:
        core = known.get(cpu)
        units[tuple(sorted(mine & set(core.cpus))) if core else (cpu,)] = core.numa_node if core else None
    if len(units) >= ranks:
        return units
    return {(cpu,): known[cpu].numa_node if cpu in known else None for cpu in cpus}


def _deal(units: list[Unit], ranks: list[int], quotas: list[int], given: list[list[Unit]]) -> None:
    """Gives these ranks, up to their quotas, runs of these units as equal as they go."""
    for at, rank in enumerate(ranks):
        take = min(-(-len(units) // (len(ranks) - at)), quotas[rank])
        given[rank] += units[:take]
        units = units[take:]
