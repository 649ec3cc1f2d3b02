"""The usable devices of a host and how each pair of them is joined: what placement searches on."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

from toolkit.host.model import Host
from toolkit.plan.devices import Device

REMOTE_DISTANCE = 20  # what Linux takes between two nodes of which the firmware says nothing (REMOTE_DISTANCE)
LOCAL_DISTANCE = 10  # of a node to itself (LOCAL_DISTANCE)
_PCIE_RANKS = {"PIX": 101, "PXB": 102, "PHB": 103, "NODE": 104, "SYS": 105}
_UNKNOWN_RANK = 106
DISTANCE_STEP = 1000  # a NUMA distance outweighs every link rank
UNLIKE_NODES = 500  # two GPUs near different nodes, even where the first ones with CPUs are equally far
Relations = Sequence[tuple[bool, int]]  # to each device: linked, and how far


@dataclass(frozen=True)
class Board:
    """Devices and, for positions ``a`` and ``b`` in them, their relation.

    ``far[a][b]`` is NUMA distance x 1000, 500 more between unlike nodes, and the link's rank. Devices with equal
    ``twins`` can be swapped in any plan.
    """

    devices: tuple[Device, ...]
    linked: tuple[tuple[bool, ...], ...]
    far: tuple[tuple[int, ...], ...]
    twins: tuple[int, ...]

    def all_linked(self, group: Iterable[int]) -> bool:
        """Whether every pair of the group is joined by NVLink."""
        return all(self.linked[a][b] for a, b in combinations(group, 2))

    def spread(self, group: Sequence[int]) -> int:
        """The largest ``far`` of any pair of the group."""
        return max((self.far[a][b] for a, b in combinations(group, 2)), default=LOCAL_DISTANCE * DISTANCE_STEP)

    def same_model(self, a: int, b: int) -> bool:
        """Whether two devices have one model and one memory size."""
        one, other = self.devices[a], self.devices[b]
        return (one.name, one.total_bytes) == (other.name, other.total_bytes)


def board(host: Host, devices: Sequence[Device], groups_of_wishes: Sequence[Collection[int]] = ()) -> Board:
    """The board of these devices; ``groups_of_wishes``: sets of positions that only some service may use."""
    links = {(link.a, link.b): link.link for link in host.links} | {(link.b, link.a): link.link for link in host.links}
    names = [[_link(links, a, b) for b in devices] for a in devices]
    linked = tuple(tuple(bool(name and name.startswith("NV")) for name in row) for row in names)
    distances = {node.node: node.distances for node in host.numa}
    far = tuple(tuple(_far(a, b, distances, names[i][j]) for j, b in enumerate(devices)) for i, a in enumerate(devices))
    relations = [tuple(zip(*rows, strict=True)) for rows in zip(linked, far, strict=True)]
    return Board(tuple(devices), linked, far, _twins(devices, relations, groups_of_wishes))


def numa_distance(distances: dict[int, dict[int, int]], a: int | None, b: int | None) -> int:
    """The kernel's distance of two nodes; of an unknown node, that of two different ones."""
    if a is None or b is None:
        return max((d for row in distances.values() for d in row.values()), default=REMOTE_DISTANCE)
    known = distances.get(a, {}).get(b, distances.get(b, {}).get(a))
    return known if known is not None else (LOCAL_DISTANCE if a == b else REMOTE_DISTANCE)


def _link(links: dict[tuple[int, int], str | None], a: Device, b: Device) -> str | None:
    """NVLink and PCIe relations are those of whole GPUs; slices have none."""
    return None if a.is_mig or b.is_mig else links.get((a.index, b.index))


def _far(a: Device, b: Device, distances: dict[int, dict[int, int]], link: str | None) -> int:
    unlike = UNLIKE_NODES if a.numa_nodes != b.numa_nodes else 0
    return DISTANCE_STEP * numa_distance(distances, a.node, b.node) + unlike + _rank(link)


def _rank(link: str | None) -> int:
    """0 is nearest: more NVLinks before fewer, then PCIe from one switch to across the sockets."""
    if link and link.startswith("NV"):
        return max(0, 100 - int(link[2:])) if link[2:].isdigit() else 100
    return _PCIE_RANKS.get(link or "", _UNKNOWN_RANK)


def _twins(
    devices: Sequence[Device], relations: Sequence[Relations], wishes: Sequence[Collection[int]]
) -> tuple[int, ...]:
    """For each device the first one that it can be swapped with."""
    traits = [(_traits(device), [p in wish for wish in wishes]) for p, device in enumerate(devices)]
    twins: list[int] = []
    for b in range(len(devices)):
        same = (a for a in range(b) if twins[a] == a and traits[a] == traits[b] and _alike(a, b, relations))
        twins.append(next(same, b))
    return tuple(twins)


def _alike(a: int, b: int, relations: Sequence[Relations]) -> bool:
    """Whether two devices stand in the same relations to all others."""
    return all(row[a] == row[b] for x, row in enumerate(relations) if x not in {a, b})


def _traits(device: Device) -> tuple[object, ...]:
    return (
        device.name,
        device.total_bytes,
        device.usable_bytes,
        device.is_mig,
        device.exclusive,
        device.shared,
        device.numa_nodes,
        device.locality,
    )
