"""Seeded random cases, small enough to try every placement of."""

from __future__ import annotations

import random
from math import comb
from typing import Any

from tests.placement_cases import cores_of
from toolkit.units import format_cpu_list

Json = dict[str, Any]
MODELS = (("NVIDIA A", 24576), ("NVIDIA B", 81920))
MOST_PLACEMENTS = 12_000


def random_case(seed: int) -> Json:
    """A host of one to eight GPUs and up to five services."""
    dice = random.Random(seed)
    host = _host(dice)
    return {
        "case": f"random-{seed}",
        "context_mib": 768,
        "host": host,
        "services": _services(dice, host),
        "properties": [],
        "expected": {"verdict": "ok"},
    }


def _host(dice: random.Random) -> Json:
    nodes, count = dice.choice((1, 2, 2, 4)), dice.choice((1, 2, 3, 4, 4, 5, 6, 6, 7, 8))
    smt = dice.random() < 0.5
    per_node = dice.randint(3, 8)
    total = nodes * per_node
    numa = [_node(node, per_node, total if smt else None) for node in range(nodes)]
    odd, cut = dice.choice((0, 0, 0.4)), dice.choice((0, 0, 0.3))
    gpus = [_gpu(dice, i, dice.randrange(nodes), numa, odd, cut) for i in range(count)]
    offset = total if smt else None
    every = range(2 * total if smt else total)
    keep = [dice.choice((0.2, 1, 1)) for _ in range(nodes)]
    allowed = [core for core in cores_of(every, offset) if dice.random() < keep[core[0] // per_node]]
    return {
        "gpus": gpus,
        "nvlink": _links(dice, gpus),
        "numa": numa,
        "distances": {a: {b: _distance(a, b, nodes) for b in range(nodes)} for a in range(nodes)},
        "smt_offset": offset,
        "cpus_allowed": format_cpu_list(cpu for core in allowed or [(0,)] for cpu in core),
        "mems_allowed": f"0-{nodes - 1}",
    }


def _node(node: int, per_node: int, offset: int | None) -> Json:
    first = range(node * per_node, (node + 1) * per_node)
    cpus = [*first, *(cpu + offset for cpu in first)] if offset else list(first)
    return {"node": node, "cpus": format_cpu_list(cpus), "memory_mib": 1000}


def _distance(a: int, b: int, nodes: int) -> int:
    if a == b:
        return 10
    return 12 if nodes == 4 and a // 2 == b // 2 else 32


def _gpu(dice: random.Random, index: int, node: int, numa: list[Json], odd: float, cut: float) -> Json:
    name, memory = MODELS[dice.random() < odd]
    blind = dice.random() < 0.1
    gpu: Json = {
        "index": index,
        "uuid": f"GPU-{index}{dice.getrandbits(32):08x}",
        "name": name,
        "memory_mib": memory,
        "used_mib": dice.choice((0, 0, 0, 610, 12000)),
        "numa": -1 if blind else [node],
        "gpu_numa_id": None,
        "cpus": None if blind else numa[node]["cpus"],
    }
    if dice.random() < cut:
        gpu["mig"] = [
            {
                "index": i,
                "uuid": f"MIG-{index}-{i}-{dice.getrandbits(32):08x}",
                "memory_mib": memory // 2,
                "used_mib": 0,
            }
            for i in range(dice.randint(0, 2))
        ]
    return gpu


def _links(dice: random.Random, gpus: list[Json]) -> list[list[int]]:
    style = dice.choice(("none", "all", "pairs", "some"))
    pairs = [[a, b] for a in range(len(gpus)) for b in range(a + 1, len(gpus))]
    if style == "pairs":
        return [[a, b] for a, b in pairs if a // 2 == b // 2]
    return [pair for pair in pairs if style == "all" or (style == "some" and dice.random() < 0.4)]


def _services(dice: random.Random, host: Json) -> list[Json]:
    devices = sum(len(gpu.get("mig", [gpu])) for gpu in host["gpus"])
    services: list[Json] = []
    ways = 1
    for i in range(dice.randint(2, 6)):
        service = _service(dice, i, devices)
        groups = service["gpus"] // service["tp_size"]
        ways *= max(1, comb(devices, min(service["tp_size"], devices)) ** groups if groups else 1)
        if ways > MOST_PLACEMENTS:
            break
        if _least_devices([*services, service]) > devices and dice.random() < 0.9:
            continue
        services.append(service)
    return services or [{**_service(dice, 0, devices), "gpus": 1, "tp_size": 1}]


def _least_devices(services: list[Json]) -> int:
    """Devices that these cannot do without, however small their memory."""
    shared = [s["gpus"] for s in services if s["share"] and s["memory_gib"] is not None]
    return sum(s["gpus"] for s in services) - sum(shared) + max(shared, default=0)


def _service(dice: random.Random, i: int, devices: int) -> Json:
    tp_size = min(dice.choice((1, 1, 1, 2, 2, 3, 4)), max(1, devices))
    gpus = tp_size * dice.choice((1, 1, 1, 2)) if dice.random() < 0.85 else 0
    if tp_size == 1 and gpus:
        gpus = dice.choice((1, 1, 1, 2))
    return {
        "name": f"s{i}",
        "gpus": min(gpus, max(tp_size, devices // tp_size * tp_size)),
        "memory_gib": dice.choice((None, 2, 2, 5, 5, 8, 8, 10, 10.5, 11, 15, 20, 22, 40)),
        "tp_size": tp_size if gpus else 1,
        "cpus": dice.choice((1, 1, 2, 2, 3, 4, 6)),
        "share": dice.random() < 0.6,
        "needs_nvlink": tp_size > 1 and dice.random() < 0.3,
    }
