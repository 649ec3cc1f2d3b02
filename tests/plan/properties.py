"""The properties of ``tests/placement/README.md``, checked on the JSON of a plan or of a refusal.

Nothing of the planner is used here: devices, cores and distances are read from the case itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations
from typing import Any

from toolkit.units import parse_cpu_list

Json = dict[str, Any]


class Subject:
    """A case and the plan made for it."""

    def __init__(self, case: Json, plan: Json) -> None:
        self.case, self.plan = case, plan
        self.host = case["host"]
        self.wanted: dict[str, Json] = {service["name"]: service for service in case["services"]}
        self.got: dict[str, Json] = {service["name"]: service for service in plan["services"]}
        self.gpus: dict[str, Json] = {}
        for gpu in self.host["gpus"]:
            for entry in gpu.get("mig", [gpu]):
                self.gpus[entry["uuid"]] = {**gpu, **entry, "index": gpu["index"], "name": gpu["name"]}
        self.node_cpus = {node["node"]: set(parse_cpu_list(node["cpus"])) for node in self.host["numa"]}

    def devices(self, name: str) -> list[Json]:
        return [self.gpus[gpu["uuid"]] for gpu in self.got[name]["gpus"]]

    def cpus(self, name: str) -> set[int]:
        return set(parse_cpu_list(self.got[name]["cpus"]))

    def near(self, gpu: Json) -> set[int] | None:
        return None if gpu["cpus"] is None else set(parse_cpu_list(gpu["cpus"]))

    def on(self, uuid: str) -> list[tuple[str, int | None]]:
        """Services on a device and their budgets there."""
        return [
            (name, gpu["budget_mib"])
            for name, service in self.got.items()
            for gpu in service["gpus"]
            if gpu["uuid"] == uuid
        ]

    def in_use(self) -> list[str]:
        return [uuid for uuid in self.gpus if self.on(uuid)]

    def groups(self) -> Iterator[tuple[str, list[Json]]]:
        for name, service in self.wanted.items():
            size, devices = service["tp_size"], self.devices(name)
            if size > 1:
                for start in range(0, len(devices), size):
                    yield name, devices[start : start + size]

    def core(self, cpu: int) -> int:
        """The first CPU of its core."""
        offset = self.host["smt_offset"]
        every = set().union(*self.node_cpus.values())
        return cpu - offset if offset and cpu - offset in every else cpu

    def numa_unknown(self, name: str) -> bool:
        return any(gpu["numa"] in (-1, None) for gpu in self.devices(name))

    def first_node(self, gpu: Json) -> int:
        return next(node for node in gpu["numa"] if self.node_cpus.get(node))

    def load_mib(self, uuid: str) -> int:
        context = self.case["context_mib"]
        return int(self.gpus[uuid]["used_mib"]) + sum((mib or 0) + context for _, mib in self.on(uuid))


def all_services_placed(s: Subject) -> bool:
    return sorted(service["name"] for service in s.plan["services"]) == sorted(s.wanted)


def gpus_counted(s: Subject) -> bool:
    return all(
        len({gpu["uuid"] for gpu in s.got[name]["gpus"]}) == len(s.got[name]["gpus"]) == service["gpus"]
        and all(gpu["uuid"] in s.gpus and s.gpus[gpu["uuid"]]["index"] == gpu["index"] for gpu in s.got[name]["gpus"])
        for name, service in s.wanted.items()
    )


def gpus_exclusive(s: Subject) -> bool:
    return all(len(s.on(uuid)) == 1 or all(s.wanted[name]["share"] for name, _ in s.on(uuid)) for uuid in s.in_use())


def gpu_memory_fits(s: Subject) -> bool:
    return all(
        s.load_mib(uuid) <= s.gpus[uuid]["memory_mib"]
        and (len(s.on(uuid)) == 1 or all(mib is not None for _, mib in s.on(uuid)))
        for uuid in s.in_use()
    )


def budgets_cover_need(s: Subject) -> bool:
    return all(
        gpu["budget_mib"] is not None and gpu["budget_mib"] >= service["memory_gib"] * 1024
        for name, service in s.wanted.items()
        if service["memory_gib"] is not None
        for gpu in s.got[name]["gpus"]
    )


def unknown_need_alone(s: Subject) -> bool:
    unknown = [name for name, service in s.wanted.items() if service["gpus"] and service["memory_gib"] is None]
    return all(len(s.on(gpu["uuid"])) == 1 for name in unknown for gpu in s.got[name]["gpus"])


def ledger_adds_up(s: Subject) -> bool:
    lines = {line["gpu"]: line for line in s.plan["ledger"]}
    if len(lines) != len(s.plan["ledger"]) or not set(s.in_use()) <= set(lines):
        return False
    for uuid in s.in_use():
        line = lines[uuid]
        reserved = sum(entry["mib"] for entry in line["reserved"])
        adds_up = line["total_mib"] == s.gpus[uuid]["memory_mib"] and reserved + line["free_mib"] == line["total_mib"]
        if not adds_up or line["free_mib"] < 0 or reserved < s.load_mib(uuid):
            return False
    return True


def sharers_ordered(s: Subject) -> bool:
    def behind(late: str, early: str) -> bool:
        return any(other == early or behind(other, early) for other in s.got[late]["after"])

    pairs = (pair for uuid in s.in_use() for pair in combinations([name for name, _ in s.on(uuid)], 2))
    return all(s.got[a]["wave"] != s.got[b]["wave"] or behind(a, b) or behind(b, a) for a, b in pairs)


def cpus_counted(s: Subject) -> bool:
    return all(len(s.cpus(name)) >= service["cpus"] for name, service in s.wanted.items())


def cpus_allowed(s: Subject) -> bool:
    allowed = set(parse_cpu_list(s.host["cpus_allowed"]))
    return all(s.cpus(name) <= allowed for name in s.wanted)


def cpus_disjoint(s: Subject) -> bool:
    return all(not s.cpus(a) & s.cpus(b) for a, b in combinations(s.wanted, 2))


def cores_not_shared(s: Subject) -> bool:
    cores = {name: {s.core(cpu) for cpu in s.cpus(name)} for name in s.wanted}
    return all(not cores[a] & cores[b] for a, b in combinations(s.wanted, 2))


def cpus_local(s: Subject) -> bool:
    for name in s.wanted:
        near = [s.near(gpu) for gpu in s.devices(name)]
        known = [cpus for cpus in near if cpus is not None]
        if near and len(known) == len(near) and not s.cpus(name) <= set().union(*known):
            return False
    return True


def cpus_reach_each_gpu(s: Subject) -> bool:
    return all(near is None or bool(s.cpus(name) & near) for name in s.wanted for near in map(s.near, s.devices(name)))


def tp_on_nvlink(s: Subject) -> bool:
    links = {frozenset(pair) for pair in s.host["nvlink"]}
    return all(
        frozenset({a["index"], b["index"]}) in links
        for name, group in s.groups()
        if s.wanted[name]["needs_nvlink"]
        for a, b in combinations(group, 2)
    )


def tp_one_model(s: Subject) -> bool:
    return all(len({(gpu["name"], gpu["memory_mib"]) for gpu in group}) == 1 for _, group in s.groups())


def tp_one_numa(s: Subject) -> bool:
    return all(all(gpu["numa"] == group[0]["numa"] for gpu in group) for _, group in s.groups())


def tp_near(s: Subject) -> bool:
    most, distances = s.case["expected"]["tp_max_distance"], s.host["distances"]
    return all(
        distances[s.first_node(a)][s.first_node(b)] <= most
        for _, group in s.groups()
        for a, b in combinations(group, 2)
    )


def membind_has_cpus(s: Subject) -> bool:
    mems = set(parse_cpu_list(s.host["mems_allowed"]))
    return all(
        bind is None or (bool(bind) and all(s.node_cpus.get(node) and node in mems for node in bind))
        for bind in (service["memory_bind"] for service in s.got.values())
    )


def membind_follows_cpus(s: Subject) -> bool:
    return all(s.node_cpus[node] & s.cpus(name) for name in s.got for node in s.got[name]["memory_bind"] or [])


def membind_unknown_none(s: Subject) -> bool:
    return all(s.got[name]["memory_bind"] is None for name in s.got if s.numa_unknown(name))


def numa_nodes_have_cpus(s: Subject) -> bool:
    return all(s.node_cpus[node] for service in s.got.values() for node in service["numa_nodes"])


def unknown_is_said(s: Subject) -> bool:
    return all(s.got[name]["notes"] or s.plan["notes"] for name in s.got if s.numa_unknown(name))


OF_A_PLAN: dict[str, Callable[[Subject], bool]] = {
    check.__name__: check
    for check in (
        all_services_placed,
        gpus_counted,
        gpus_exclusive,
        gpu_memory_fits,
        budgets_cover_need,
        unknown_need_alone,
        ledger_adds_up,
        sharers_ordered,
        cpus_counted,
        cpus_allowed,
        cpus_disjoint,
        cores_not_shared,
        cpus_local,
        cpus_reach_each_gpu,
        tp_on_nvlink,
        tp_one_model,
        tp_one_numa,
        tp_near,
        membind_has_cpus,
        membind_follows_cpus,
        membind_unknown_none,
        numa_nodes_have_cpus,
        unknown_is_said,
    )
}
OF_A_REFUSAL: dict[str, Callable[[Json, Json], bool]] = {
    "refused_whole": lambda case, answer: "error" in answer and "services" not in answer,
    "names_resource": lambda case, answer: answer["error"]["resource"] == case["expected"]["resource"],
    "says_how_much": lambda case, answer: (
        answer["error"]["needed"] - answer["error"]["available"] == case["expected"]["short_by"]
    ),
    "names_service": lambda case, answer: bool(set(answer["error"]["services"]) & set(case["expected"]["services"])),
}


def broken(case: Json, answer: Json) -> list[str]:
    """The properties of the case that do not hold of the answer, a plan's or an error's JSON."""
    if case["expected"]["verdict"] == "refuse":
        return [name for name in case["properties"] if not ("error" in answer and OF_A_REFUSAL[name](case, answer))]
    if "error" in answer:
        return list(case["properties"])
    subject = Subject(case, answer)
    return [name for name in case["properties"] if not OF_A_PLAN[name](subject)]
