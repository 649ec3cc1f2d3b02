"""Hosts and deployments for tests, in few words."""

from __future__ import annotations

from typing import Any

from toolkit.config.models import Deployment
from toolkit.host.model import Core, Gpu, GpuLink, Host, MigDevice, NumaNode
from toolkit.units import GIB, MIB

CONTEXT = 768 * MIB


def gpu(index: int, node: int | None = 0, memory_gib: int = 80, **fields: Any) -> Gpu:
    """A GPU near the CPUs of its node."""
    near = None if node is None else (node,)
    defaults = {"name": "H100", "memory_bytes": memory_gib * GIB, "used_bytes": 0, "numa_nodes": near}
    return Gpu(index=index, **{"uuid": f"GPU-{index}{index}-abc", **defaults, **fields})


def slices(count: int, memory_gib: int = 20) -> tuple[MigDevice, ...]:
    return tuple(
        MigDevice(uuid=f"MIG-{i}-def", index=i, profile=None, memory_bytes=memory_gib * GIB) for i in range(count)
    )


def host(*gpus: Gpu, nodes: int = 1, cores: int = 16, smt: bool = False, links: str = "", **fields: Any) -> Host:
    """``cores`` on each of the nodes; ``links``: pairs such as ``01 23``."""
    total = nodes * cores
    made = [Core(cpus=(c, c + total) if smt else (c,), numa_node=c // cores) for c in range(total)]
    numa = [
        NumaNode(
            node=n,
            cpus=tuple(cpu for core in made if core.numa_node == n for cpu in core.cpus),
            distances={m: 10 if m == n else 20 for m in range(nodes)},
        )
        for n in range(nodes)
    ]
    defaults = {
        "cpus_allowed": tuple(sorted(cpu for core in made for cpu in core.cpus)),
        "numa": tuple(numa),
        "mems_allowed": tuple(range(nodes)),
        "context_bytes": CONTEXT,
        "links": tuple(GpuLink(a=int(pair[0]), b=int(pair[1]), link="NV4") for pair in links.split()),
    }
    return Host(gpus=gpus, cores=tuple(made), **{**defaults, **fields})


def deployment(**services: dict[str, Any]) -> Deployment:
    """Services of runtime ``command`` with these keys."""
    entries = {
        name.replace("_", "-"): {"runtime": "command", "argv": ["true"], **keys} for name, keys in services.items()
    }
    return Deployment.model_validate({"version": 1, "name": "test", "services": entries})


def shared(memory: str, **keys: Any) -> dict[str, Any]:
    return {"gpus": {"count": 1, "share": True}, "gpu_memory": memory, **keys}
