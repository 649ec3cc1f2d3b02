"""Placement cases (their form: ``tests/placement/README.md``) as what ``coexist plan CONFIG --host FILE`` reads."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from toolkit.units import parse_cpu_list

MIB = 1024**2
GIB = 1024**3


def translate(case: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The host record (JSON) and the deployment (YAML) of a case. What the case does not say stays unknown."""
    return _host(case["host"], case["context_mib"]), _deployment(case)


def _host(host: Mapping[str, Any], context_mib: int) -> dict[str, Any]:
    cpus = sorted({cpu for node in host["numa"] for cpu in parse_cpu_list(node["cpus"])})
    return {
        "schema": 1,
        "context_mib": context_mib,
        "recorded": True,
        "gpus": [_gpu(gpu) for gpu in host["gpus"]],
        "links": [{"a": min(pair), "b": max(pair), "link": "NV1"} for pair in host["nvlink"]],
        "cores": [{"cpus": list(core)} for core in cores_of(cpus, host["smt_offset"])],
        "cpus_allowed": list(parse_cpu_list(host["cpus_allowed"])),
        "mems_allowed": list(parse_cpu_list(host["mems_allowed"])),
        "numa": [_node(node, host["distances"]) for node in host["numa"]],
    }


def _gpu(gpu: Mapping[str, Any]) -> dict[str, Any]:
    nodes = gpu["numa"]
    return {
        "index": gpu["index"],
        "uuid": gpu["uuid"],
        "name": gpu["name"],
        "memory_bytes": gpu["memory_mib"] * MIB,
        "used_bytes": gpu["used_mib"] * MIB,
        "numa_nodes": nodes if isinstance(nodes, list) else None,
        "gpu_numa_id": gpu["gpu_numa_id"],
        "cpus": None if gpu["cpus"] is None else list(parse_cpu_list(gpu["cpus"])),
        "mig": None if gpu.get("mig") is None else [_slice(entry) for entry in gpu["mig"]],
    }


def _slice(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "uuid": entry["uuid"],
        "index": entry["index"],
        "profile": entry.get("profile"),
        "memory_bytes": entry["memory_mib"] * MIB,
        "used_bytes": entry["used_mib"] * MIB,
    }


def _node(node: Mapping[str, Any], distances: Mapping[int, Mapping[int, int]]) -> dict[str, Any]:
    row = distances.get(node["node"], {})
    return {
        "node": node["node"],
        "cpus": list(parse_cpu_list(node["cpus"])),
        "memory_bytes": node["memory_mib"] * MIB,
        "distances": {str(other): distance for other, distance in row.items()},
    }


def cores_of(cpus: Iterable[int], smt_offset: int | None) -> list[tuple[int, ...]]:
    """CPUs by physical core: ``c`` and ``c + smt_offset`` are threads of one."""
    left = dict.fromkeys(sorted(cpus))
    cores = []
    while left:
        first = next(iter(left))
        sibling = first + smt_offset if smt_offset else first
        core = (first, sibling) if sibling in left and sibling != first else (first,)
        cores.append(core)
        for cpu in core:
            del left[cpu]
    return cores


def _deployment(case: Mapping[str, Any]) -> dict[str, Any]:
    services = {service["name"]: _service(service) for service in case["services"]}
    return {"version": 1, "name": case["case"].lower().replace(" ", "-"), "services": services}


def _service(service: Mapping[str, Any]) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "runtime": "command",
        "argv": ["python3", "-m", "http.server", "{port}"],
        "ready": {"path": "/"},
        "canary": {"path": "/", "status": 200},
    }
    if service["cpus"]:
        entry["cpus"] = service["cpus"]
    if not service["gpus"]:
        return entry
    entry["gpus"] = {"count": service["gpus"], "share": service["share"]}
    entry["tp_size"] = service["tp_size"]
    entry["nvlink"] = "required" if service["needs_nvlink"] else "preferred"
    if service["memory_gib"] is not None:
        entry["gpu_memory"] = f"{math.ceil(service['memory_gib'] * GIB)}B"
    return entry
