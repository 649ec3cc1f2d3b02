"""The cores there are to give, in regions of cores that are near the same GPUs, and what services ask of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from toolkit.config.models import Service
from toolkit.host.model import Core, Host


@dataclass(frozen=True)
class CoreWish:
    """What a service asks for: ``exact`` CPUs, at least ``cpus`` of them, or (neither) its part of what is left."""

    name: str
    cpus: int | None = None
    exact: tuple[int, ...] | None = None

    @property
    def is_auto(self) -> bool:
        return self.cpus is None and self.exact is None


@dataclass(frozen=True)
class Reach:
    """Which CPUs are near a service's devices: indices of localities, and whether some device's are unknown."""

    localities: tuple[int, ...] = ()
    unknown: bool = False

    @property
    def anywhere(self) -> bool:
        """Whether no core is remote for it: it has no device, or one that does not say."""
        return self.unknown or not self.localities


@dataclass(frozen=True)
class PoolCore:
    """The allowed CPUs of one physical core. ``mask`` has bit l set when all of them are in locality l."""

    cpus: tuple[int, ...]
    node: int | None
    cache_group: int | None
    mask: int


@dataclass(frozen=True)
class Region:
    """Cores with one ``mask`` on one node."""

    mask: int
    node: int | None
    cores: tuple[PoolCore, ...]


@dataclass(frozen=True)
class CorePool:
    """Whole cores that nobody named. ``width``: CPUs of the widest core; a bundle is that many CPUs."""

    regions: tuple[Region, ...]
    width: int

    @property
    def core_count(self) -> int:
        return sum(len(region.cores) for region in self.regions)

    def bundles(self, region: Region) -> int:
        """Bundles in a region: its widest cores, and the others put together."""
        sizes = [len(core.cpus) for core in region.cores]
        wide = sum(1 for size in sizes if size == self.width)
        return wide + (sum(sizes) - wide * self.width) // self.width

    def bundles_for(self, cpus: int) -> int:
        """Bundles that hold so many CPUs."""
        return -(-cpus // self.width)


def wish(name: str, service: Service) -> CoreWish:
    """What the service's ``cpus:`` asks for."""
    if service.cpus == "auto":
        return CoreWish(name)
    if isinstance(service.cpus, int):
        return CoreWish(name, cpus=service.cpus)
    return CoreWish(name, exact=tuple(sorted(set(service.cpus))))


def pool(host: Host, near: Sequence[frozenset[int]], taken: Iterable[int]) -> CorePool:
    """The cores whose allowed CPUs are all free; ``taken``: CPUs named by a service or held by another deployment."""
    gone, allowed = set(taken), set(host.cpus_allowed)
    nodes = {cpu: node.node for node in host.numa for cpu in node.cpus}
    cores = [_pool_core(core, allowed, near, nodes) for core in all_cores(host)]
    free = [core for core in cores if core.cpus and not gone & set(core.cpus)]
    return _pool_of(free)


def threads(host: Host, near: Sequence[frozenset[int]], taken: Iterable[int]) -> CorePool:
    """Every allowed CPU that is free as a core of its own, siblings side by side."""
    gone, allowed = set(taken), set(host.cpus_allowed)
    nodes = {cpu: node.node for node in host.numa for cpu in node.cpus}
    each = [core.model_copy(update={"cpus": (cpu,)}) for core in all_cores(host) for cpu in core.cpus]
    return _pool_of([_pool_core(one, allowed, near, nodes) for one in each if {*one.cpus} <= allowed - gone])


def _pool_of(free: Sequence[PoolCore]) -> CorePool:
    keys = sorted({(core.mask, core.node) for core in free}, key=lambda key: (key[1] is None, key[1] or 0, key[0]))
    regions = (Region(mask, node, tuple(c for c in free if (c.mask, c.node) == (mask, node))) for mask, node in keys)
    return CorePool(tuple(regions), max((len(core.cpus) for core in free), default=1))


def all_cores(host: Host) -> list[Core]:
    """Every core by its first CPU; a CPU that no core names is a core of its own."""
    named = {cpu for core in host.cores for cpu in core.cpus}
    alone = [Core(cpus=(cpu,)) for cpu in host.cpus_allowed if cpu not in named]
    return sorted([*host.cores, *alone], key=lambda core: core.cpus)


def _pool_core(core: Core, allowed: set[int], near: Sequence[frozenset[int]], nodes: dict[int, int]) -> PoolCore:
    cpus = tuple(sorted(cpu for cpu in core.cpus if cpu in allowed))
    node = next((nodes[cpu] for cpu in cpus if cpu in nodes), core.numa_node)
    mask = sum(1 << i for i, locality in enumerate(near) if locality.issuperset(cpus))
    return PoolCore(cpus, node, core.cache_group, mask)


def quota_cpus(host: Host) -> int | None:
    """Whole CPUs of the cgroup's quota, at least one; None: there is no quota."""
    quota = host.limits.cpu_quota
    return None if quota is None else max(1, int(quota))
