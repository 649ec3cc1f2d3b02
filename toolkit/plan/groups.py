"""The ways in which one service can have its devices, each way once where devices can be swapped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from toolkit.plan.board import Board
from toolkit.plan.demand import Demand
from toolkit.plan.devices import Device

EMPTY, SHARED, CLOSED = 0, 1, 2
Group = tuple[int, ...]


class Holder(NamedTuple):
    """What is left of a device: bytes (None: the host does not say), and whether it is empty, shared or closed."""

    free_bytes: int | None
    state: int

    def with_service(self, demand: Demand) -> Holder:
        """The device with one more service."""
        if self.free_bytes is None:
            return Holder(None, CLOSED)
        return Holder(self.free_bytes - demand.need_bytes, CLOSED if demand.alone else SHARED)


def untouched(device: Device) -> Holder:
    """A device before any of our services is on it."""
    return Holder(device.usable_bytes, SHARED if device.shared else EMPTY)


def choices(board: Board, holders: Sequence[Holder], demand: Demand) -> Iterator[tuple[Group, ...]]:
    """Every way to give the demand its groups; of devices that can be swapped, the first ones."""
    able = [p for p in range(len(holders)) if _can_host(board, holders, demand, p)]
    if _has_clique(board, able, demand.linked):
        yield from _groups(board, holders, demand, able, ())


def _can_host(board: Board, holders: Sequence[Holder], demand: Demand, position: int) -> bool:
    device, holder = board.devices[position], holders[position]
    if demand.choice is not None and position not in demand.choice:
        return False
    if device.is_mig and not demand.mig_allowed:
        return False
    if holder.state == CLOSED or (holder.state == SHARED and (demand.alone or device.exclusive)):
        return False
    return holder.free_bytes is None or holder.free_bytes >= demand.need_bytes


def _groups(
    board: Board, holders: Sequence[Holder], demand: Demand, able: list[int], done: tuple[Group, ...]
) -> Iterator[tuple[Group, ...]]:
    """Completes ``done``; groups of one service are alike, so their kinds of devices only ever ascend."""
    if len(done) == demand.groups:
        yield tuple(sorted(done))
        return
    kinds = list(zip(board.twins, holders, strict=True))
    ranks = {kind: rank for rank, kind in enumerate(dict.fromkeys(kinds))}
    floor = sorted(ranks[kinds[p]] for p in done[-1]) if done else []
    for group in _one_group(board, demand, able, kinds, ()):
        if sorted(ranks[kinds[p]] for p in group) >= floor:
            rest = [p for p in able if p not in group]
            yield from _groups(board, holders, demand, rest, (*done, group))


def _one_group(
    board: Board, demand: Demand, able: Sequence[int], kinds: Sequence[object], begun: Group
) -> Iterator[Group]:
    """Groups that start with ``begun`` and go on with later positions of ``able``, one for each kind at each place."""
    if len(begun) == demand.size:
        if _whole(board, demand, begun):
            yield begun
        return
    tried: set[object] = set()
    for i, position in enumerate(able):
        if kinds[position] not in tried and _joins(board, demand, begun, position):
            tried.add(kinds[position])
            yield from _one_group(board, demand, able[i + 1 :], kinds, (*begun, position))


def _joins(board: Board, demand: Demand, begun: Group, position: int) -> bool:
    """Whether a device may join, where every device of the group has to be alike or linked."""
    alike = demand.same < demand.size or all(board.same_model(position, other) for other in begun)
    linked = demand.linked < demand.size or all(board.linked[position][other] for other in begun)
    return alike and linked


def _whole(board: Board, demand: Demand, group: Group) -> bool:
    """Whether enough of a group is of one model and linked, where that may be less than all of it."""
    if demand.same <= 1 >= demand.linked:
        return True
    alike = max(sum(board.same_model(a, b) for b in group) for a in group)
    return alike >= demand.same and _has_clique(board, group, demand.linked)


def _has_clique(board: Board, devices: Sequence[int], size: int) -> bool:
    """Whether so many of the devices are linked pairwise."""
    if size <= 1:
        return len(devices) >= size
    return any(
        _has_clique(board, [other for other in devices[i + 1 :] if board.linked[device][other]], size - 1)
        for i, device in enumerate(devices)
    )
