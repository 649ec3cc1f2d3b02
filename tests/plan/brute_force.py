"""Every placement of a small case, tried one by one: the reference that the planner's search is held against.

Written from the case and its README alone. The cost is the planner's preference: groups not joined by NVLink, the
farthest group, the sum of distances (links break ties), cores that cannot be near, devices in use.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Any

from tests.placement_cases import cores_of
from toolkit.units import parse_cpu_list

Json = dict[str, Any]
Groups = tuple[tuple[int, ...], ...]
Cost = tuple[int, int, int, int, int]
LINKED_RANK, UNLINKED_RANK = 99, 106


class World:
    """A case as flat lists: devices, who may use them, cores."""

    def __init__(self, case: Json) -> None:
        host = case["host"]
        self.context = case["context_mib"]
        self.devices: list[Json] = []
        for gpu in host["gpus"]:
            for entry in gpu.get("mig", [gpu]):
                self.devices.append({**gpu, **entry, "index": gpu["index"], "name": gpu["name"], "slice": "mig" in gpu})
        self.links = {frozenset(pair) for pair in host["nvlink"]}
        self.distances = host["distances"]
        self.with_cpus = [node["node"] for node in host["numa"] if node["cpus"]]
        self.services = case["services"]
        every = [cpu for node in host["numa"] for cpu in parse_cpu_list(node["cpus"])]
        allowed = set(parse_cpu_list(host["cpus_allowed"]))
        cores = [tuple(cpu for cpu in core if cpu in allowed) for core in cores_of(every, host["smt_offset"])]
        self.cores = [core for core in cores if core]
        self.width = max(map(len, self.cores), default=1)
        self.near = [
            None if device["cpus"] is None else frozenset(parse_cpu_list(device["cpus"])) for device in self.devices
        ]

    def linked(self, a: int, b: int) -> bool:
        one, other = self.devices[a], self.devices[b]
        return not (one["slice"] or other["slice"]) and frozenset({one["index"], other["index"]}) in self.links

    def distance(self, a: int, b: int) -> int:
        one, other = self.node(a), self.node(b)
        if one is None or other is None:
            return max((d for row in self.distances.values() for d in row.values()), default=20)
        return int(self.distances[one][other])

    def node(self, position: int) -> int | None:
        numa = self.devices[position]["numa"]
        return next((node for node in numa if node in self.with_cpus), None) if isinstance(numa, list) else None

    def nodes(self, position: int) -> list[int]:
        numa = self.devices[position]["numa"]
        return numa if isinstance(numa, list) else []

    def cores_for(self, service: Json) -> int:
        return -(-int(service["cpus"]) // self.width)


def groupings(world: World, service: Json) -> Iterator[Groups]:
    """Every way to give a service its devices, one by one, what others do left aside."""
    able = [p for p in range(len(world.devices)) if service["tp_size"] == 1 or not world.devices[p]["slice"]]
    if service["tp_size"] == 1:
        yield from ((chosen,) for chosen in combinations(able, service["gpus"]))
        return
    yield from _runs(world, service, able, service["gpus"] // service["tp_size"])


def _runs(world: World, service: Json, able: list[int], runs: int) -> Iterator[Groups]:
    if not runs:
        yield ()
        return
    for group in combinations(able, service["tp_size"]):
        models = {(world.devices[p]["name"], world.devices[p]["memory_mib"]) for p in group}
        joined = all(world.linked(a, b) for a, b in combinations(group, 2))
        if len(models) == 1 and (joined or not service["needs_nvlink"]):
            later = [p for p in able if p > group[0] and p not in group]
            for rest in _runs(world, service, later, runs - 1):
                yield (group, *rest)


def placements(world: World) -> Iterator[dict[str, Groups]]:
    """Every placement that keeps the rules of sharing and of memory."""
    wanting = [service for service in world.services if service["gpus"]]
    options = {service["name"]: list(groupings(world, service)) for service in wanting}
    yield from _place(world, wanting, options, {})


def _place(
    world: World, wanting: list[Json], options: dict[str, list[Groups]], done: dict[str, Groups]
) -> Iterator[dict[str, Groups]]:
    if len(done) == len(wanting):
        yield done
        return
    service = wanting[len(done)]
    for groups in options[service["name"]]:
        placed = {**done, service["name"]: groups}
        if _lawful(world, wanting, placed):
            yield from _place(world, wanting, options, placed)


def _lawful(world: World, wanting: list[Json], placed: dict[str, Groups]) -> bool:
    for p, device in enumerate(world.devices):
        here = [s for s in wanting if s["name"] in placed and any(p in group for group in placed[s["name"]])]
        if len(here) > 1 and not all(s["share"] and s["memory_gib"] is not None for s in here):
            return False
        need = sum((s["memory_gib"] or 0) * 1024 + world.context for s in here)
        if here and device["used_mib"] + need > device["memory_mib"]:
            return False
    return True


def enough_cpus(world: World) -> bool:
    return sum(int(service["cpus"]) for service in world.services) <= sum(map(len, world.cores))


def whole_cores_suffice(case: Json) -> bool:
    """Whether every service can have cores of its own; else some have single threads of a core."""
    world = World(case)
    return sum(map(world.cores_for, world.services)) <= len(world.cores)


def cost(world: World, placed: dict[str, Groups], remote: int) -> Cost:
    """What a placement costs, smaller is better."""
    groups = [
        group
        for service in world.services
        if service["tp_size"] > 1 and service["gpus"]
        for group in placed[service["name"]]
    ]
    joined = [all(world.linked(a, b) for a, b in combinations(group, 2)) for group in groups]
    spreads = [
        max(
            1000 * world.distance(a, b)
            + (500 if world.nodes(a) != world.nodes(b) else 0)
            + (LINKED_RANK if world.linked(a, b) else UNLINKED_RANK)
            for a, b in combinations(group, 2)
        )
        for group in groups
    ]
    used = {p for groups_of_one in placed.values() for group in groups_of_one for p in group}
    return (joined.count(False), max(spreads, default=0), sum(spreads), remote, len(used))


def units(world: World, service: Json, groups: Groups) -> list[frozenset[int]]:
    """For each core of a service, the CPUs it should lie in: one near each GPU, the rest near any; empty: no matter."""
    near = [world.near[p] for group in groups for p in group]
    known = sorted({cpus for cpus in near if cpus is not None}, key=sorted)
    count = world.cores_for(service)
    if not known:
        return []
    union = frozenset().union(*known)
    if count < len(known):
        return [union] * count
    rest = [] if None in near else [union] * (count - len(known))
    return [*known, *rest]


def misplaced(wanted: list[frozenset[int]], cores: list[tuple[int, ...]]) -> int:
    """Units that no assignment to these cores can serve: maximum matching, one augmenting path after the other."""
    owner: dict[int, int] = {}

    def serve(unit: int, tried: set[int]) -> bool:
        for i, core in enumerate(cores):
            if i not in tried and wanted[unit].issuperset(core):
                tried.add(i)
                if i not in owner or serve(owner[i], tried):
                    owner[i] = unit
                    return True
        return False

    return sum(not serve(unit, set()) for unit in range(len(wanted)))


def best(case: Json) -> Cost | None:
    """The least cost of any plan of the case, or None when there is no plan."""
    world = World(case)
    if not enough_cpus(world):
        return None
    known: dict[object, int] = {}
    least: Cost | None = None
    for placed in placements(world):
        wanted = [u for s in world.services if s["gpus"] for u in units(world, s, placed[s["name"]])]
        key = tuple(sorted(map(tuple, map(sorted, wanted))))
        if key not in known:
            known[key] = misplaced(wanted, world.cores)
        here = cost(world, placed, known[key])
        least = here if least is None else min(least, here)
    return least


def cost_of_plan(case: Json, plan: Json) -> Cost:
    """What the planner's own answer costs, its cores counted as they were given."""
    world = World(case)
    position = {device["uuid"]: p for p, device in enumerate(world.devices)}
    placed: dict[str, Groups] = {}
    remote = 0
    for entry in plan["services"]:
        service = next(s for s in world.services if s["name"] == entry["name"])
        devices = [position[gpu["uuid"]] for gpu in entry["gpus"]]
        size = service["tp_size"] if service["tp_size"] > 1 else max(1, len(devices))
        placed[entry["name"]] = tuple(tuple(devices[i : i + size]) for i in range(0, len(devices), size))
        if devices:
            cpus = set(parse_cpu_list(entry["cpus"]))
            cores = [core for core in world.cores if cpus.issuperset(core)]
            remote += misplaced(units(world, service, placed[entry["name"]]), cores)
    return cost(world, placed, remote)
