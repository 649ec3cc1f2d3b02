"""The search for devices: depth first, nearest to the best first, cut off by what a partial choice must cost at least.

Preference, most important first: tensor-parallel groups not joined by NVLink; distance inside groups (the farthest
group, then the sum); bundles of cores that cannot be near their GPUs; devices in use, each of which leaves a fragment.
A choice is worked out once for devices that can be swapped and once for partial choices that leave the same future.
Up to ``EXACT_DEVICES`` devices and ``EXACT_SERVICES`` services the answer is the best there is. Beyond, the search ends
after ``NODE_LIMIT`` partial choices with the best found so far, which is never worse than the greedy way down; while
nothing is found it goes on to ``NODE_LIMIT_WITHOUT_PLAN``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from toolkit.plan.board import Board
from toolkit.plan.cores import Reach
from toolkit.plan.demand import Demand
from toolkit.plan.groups import Group, Holder, choices, untouched
from toolkit.plan.packing import Rest, devices_at_least, devices_for_cores, rest_of
from toolkit.plan.remote import Claims, RemoteCount, merged

EXACT_DEVICES = 8
EXACT_SERVICES = 8
NODE_LIMIT = 2_000  # about a quarter of a second
NODE_LIMIT_WITHOUT_PLAN = 400_000
CHOICE_LIMIT = 2_000  # ways to choose one service's devices, on hosts of more than EXACT_DEVICES


class Cost(NamedTuple):
    """What a plan costs; smaller is better, the first difference decides."""

    unlinked_groups: int
    farthest: int
    distance: int
    remote_cores: int
    fragments: int


@dataclass(frozen=True)
class Placement:
    """Positions of each service's devices, group by group. ``proven``: no other placement costs less."""

    groups: dict[str, tuple[Group, ...]]
    cost: Cost
    proven: bool


class Node(NamedTuple):
    """A partial choice: what is left of each device, and what the services so far cost."""

    level: int
    holders: tuple[Holder, ...]
    near: Claims
    unlinked: int
    farthest: int
    distance: int
    remote_exact: int
    chosen: tuple[tuple[Group, ...], ...]


class Effect(NamedTuple):
    """What one service's devices add, wherever the others are."""

    claims: Claims
    remote_exact: int
    unlinked: int
    farthest: int
    distance: int


def place(
    demands: Sequence[Demand],
    board: Board,
    near: tuple[frozenset[int], ...],
    remote: RemoteCount,
    *,
    any_will_do: bool = False,
) -> Placement | None:
    """The best placement of all demands, or None when there is none; ``any_will_do``: the first one found."""
    search = _Search(demands, board, near, remote, any_will_do)
    return search.run()


def reach(board: Board, positions: Sequence[int]) -> Reach:
    """What is near these devices."""
    found = [board.devices[position].locality for position in positions]
    known = sorted({locality for locality in found if locality is not None})
    return Reach(tuple(known), unknown=None in found)


def _hardest_first(demand: Demand) -> tuple[object, ...]:
    """Named devices, linked groups, large groups, those that want a device for themselves, large memory."""
    group_size = demand.size if demand.tensor_parallel else 0
    return (demand.choice is None, -demand.linked, -group_size, not demand.alone, -demand.need_bytes, -demand.count)


class _Search:
    """One search. All state is here; decisions are in pure functions of a node."""

    def __init__(
        self,
        demands: Sequence[Demand],
        board: Board,
        near: tuple[frozenset[int], ...],
        remote: RemoteCount,
        any_will_do: bool,
    ) -> None:
        self._demands = sorted(demands, key=_hardest_first)
        self._board, self._near, self._remote = board, near, remote
        self._any_will_do = any_will_do
        self._localities = [device.locality for device in board.devices]
        few_devices, few_services = len(board.devices) <= EXACT_DEVICES, len(demands) <= EXACT_SERVICES
        self._choice_limit = None if few_devices else CHOICE_LIMIT
        self._node_limit = NODE_LIMIT_WITHOUT_PLAN if few_devices and few_services else NODE_LIMIT
        self._best: Node | None = None
        self._best_cost: Cost | None = None
        self._seen: dict[object, list[tuple[int, ...]]] = {}
        self._effects: dict[tuple[int, tuple[Group, ...]], Effect] = {}
        self._nodes = 0
        self._gave_up = False

    def run(self) -> Placement | None:
        root = Node(0, tuple(map(untouched, self._board.devices)), (), 0, 0, 0, 0, ())
        if not self._prepare(root):
            return None
        self._descend(root)
        if self._best is None or self._best_cost is None:
            return None
        named = {d.name: groups for d, groups in zip(self._demands, self._best.chosen, strict=True)}
        return Placement(named, self._best_cost, not self._gave_up and not self._any_will_do)

    def _prepare(self, root: Node) -> bool:
        """Works out what the demands from each level on cost at least; False when one has no choice at all."""
        levels = len(self._demands)
        self._rest = [(0, 0, 0)] * (levels + 1)
        self._rest_claims: list[Claims] = [()] * (levels + 1)
        self._rest_devices: list[Rest] = [rest_of(self._demands[level:]) for level in range(levels + 1)]
        for level in reversed(range(levels)):
            demand = self._demands[level]
            costs = [_group_costs(self._board, demand, groups) for groups in self._choices(root, demand)]
            if not costs:
                return False
            least = tuple(map(min, zip(*costs, strict=True)))
            later = self._rest[level + 1]
            self._rest[level] = (least[0] + later[0], max(least[1], later[1]), least[2] + later[2])
            self._rest_claims[level] = merged(self._rest_claims[level + 1], self._least_claims(demand))
        return True

    def _least_claims(self, demand: Demand) -> Claims:
        """Cores near some device that the demand might get, whichever it gets."""
        positions = range(len(self._board.devices)) if demand.choice is None else sorted(demand.choice)
        everywhere = reach(self._board, positions)
        if everywhere.anywhere:
            return ()
        one = Reach(everywhere.localities[:1])
        union = sum(1 << locality for locality in everywhere.localities)
        return tuple((union, bundles) for _, bundles in self._remote.claims(demand.cores, one))

    def _choices(self, node: Node, demand: Demand) -> Iterator[tuple[Group, ...]]:
        return islice(choices(self._board, node.holders, demand), self._choice_limit)

    def _descend(self, node: Node) -> bool:
        """Looks below a node; True when the whole search is over."""
        if node.level == len(self._demands):
            self._best, self._best_cost = node, self._at_least(node)
            return self._any_will_do
        children = [self._child(node, groups) for groups in self._choices(node, self._demands[node.level])]
        priced = [(self._at_least(child), self._taste(child), child) for child in children]
        for cost, _, child in sorted(priced, key=lambda entry: entry[:2]):
            if self._best_cost is not None and cost >= self._best_cost:
                break
            if cost.fragments > len(self._board.devices) or self._known(child):
                continue
            if self._over_limit() or self._descend(child):
                return True
        return False

    def _over_limit(self) -> bool:
        self._nodes += 1
        limit = NODE_LIMIT_WITHOUT_PLAN if self._best is None else self._node_limit
        self._gave_up = self._gave_up or self._nodes > limit
        return self._gave_up

    def _known(self, node: Node) -> bool:
        """Whether a node with the same future that costs no more was looked at before."""
        future = sorted(zip(self._board.twins, node.holders, strict=True))
        key = (node.level, tuple(future), node.near)
        cost = (node.unlinked, node.farthest, node.distance, node.remote_exact)
        seen = self._seen.setdefault(key, [])
        if seen and self._any_will_do:
            return True
        if any(all(a <= b for a, b in zip(other, cost, strict=True)) for other in seen):
            return True
        seen.append(cost)
        return False

    def _child(self, node: Node, groups: tuple[Group, ...]) -> Node:
        demand = self._demands[node.level]
        holders = list(node.holders)
        for group in groups:
            for position in group:
                holders[position] = holders[position].with_service(demand)
        effect = self._effect(node.level, groups)
        return Node(
            node.level + 1,
            tuple(holders),
            merged(node.near, effect.claims),
            node.unlinked + effect.unlinked,
            max(node.farthest, effect.farthest),
            node.distance + effect.distance,
            node.remote_exact + effect.remote_exact,
            (*node.chosen, groups),
        )

    def _effect(self, level: int, groups: tuple[Group, ...]) -> Effect:
        if (level, groups) not in self._effects:
            demand = self._demands[level]
            at = reach(self._board, [position for group in groups for position in group])
            self._effects[level, groups] = Effect(
                self._remote.claims(demand.cores, at),
                self._remote.fixed(demand.cores, at, self._near),
                *_group_costs(self._board, demand, groups),
            )
        return self._effects[level, groups]

    def _at_least(self, node: Node) -> Cost:
        """A lower bound of what any completion of the node costs; exact where nothing is left to place."""
        unlinked, farthest, distance = self._rest[node.level]
        claims = merged(node.near, self._rest_claims[node.level])
        remote = self._remote.unplaceable(claims)
        near = sum(bundles for _, bundles in claims) - remote
        devices = devices_at_least(node.holders, self._rest_devices[node.level])
        return Cost(
            node.unlinked + unlinked,
            max(node.farthest, farthest),
            node.distance + distance,
            node.remote_exact + remote,
            devices_for_cores(node.holders, self._localities, self._remote.bundles_near, near, devices),
        )

    def _taste(self, node: Node) -> tuple[object, ...]:
        """What decides among choices that cost the same: undisturbed devices, a tight fit, islands left whole."""
        groups = node.chosen[-1]
        positions = [position for group in groups for position in group]
        devices = [self._board.devices[position] for position in positions]
        left = [node.holders[position].free_bytes or 0 for position in positions]
        neighbours = sum(self._unused_neighbours(node, position) for position in positions)
        others_bytes = sum(r.size_bytes for device in devices for r in device.held)
        size = sum(device.total_bytes or 0 for device in devices)
        return (others_bytes, size, sum(left), neighbours, positions)

    def _unused_neighbours(self, node: Node, position: int) -> int:
        """Devices that nobody has and that the best groups with this one could use."""
        same = [p for p in range(len(node.holders)) if p != position and not node.holders[p].state]
        nodes = self._board.devices
        return sum(1 for p in same if self._board.linked[p][position] or nodes[p].node == nodes[position].node)


def _group_costs(board: Board, demand: Demand, groups: Sequence[Group]) -> tuple[int, int, int]:
    """Groups that NVLink does not join, the farthest group, and the sum of the groups' distances."""
    if not demand.tensor_parallel:
        return (0, 0, 0)
    spreads = [board.spread(group) for group in groups]
    return (sum(not board.all_linked(group) for group in groups), max(spreads), sum(spreads))
