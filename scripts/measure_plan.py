"""Milliseconds to plan 16 services on 8 GPUs, for hosts from uniform to one where no two GPUs are alike.

    python scripts/measure_plan.py [--runs N]

Prints one line a host: median and worst of N runs, and whether the placement is proven to be the best.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from toolkit.config.models import Deployment
from toolkit.host.model import Core, Gpu, GpuLink, Host, NumaNode
from toolkit.plan import make
from toolkit.units import GIB, MIB

CUT_SHORT = "cut short"


def host(nodes: int, *, linked: str, unlike: bool) -> Host:
    """Eight GPUs over so many NUMA nodes of a machine with 128 cores of two threads."""
    per_node = 128 // nodes
    near = [tuple(c + t for t in (0, 128) for c in range(n * per_node, (n + 1) * per_node)) for n in range(nodes)]
    gpus = [
        Gpu(
            index=i,
            uuid=f"GPU-{i}",
            name="H100",
            memory_bytes=80 * GIB,
            used_bytes=i * 100 * MIB if unlike else 0,
            numa_nodes=(i * nodes // 8,),
            cpus=near[i * nodes // 8],
        )
        for i in range(8)
    ]
    pairs = [(a, b) for a in range(8) for b in range(a + 1, 8) if linked == "all" or (linked == "mesh" and _mesh(a, b))]
    return Host(
        gpus=tuple(gpus),
        links=tuple(GpuLink(a=a, b=b, link="NV4") for a, b in pairs),
        cores=tuple(Core(cpus=(c, c + 128)) for c in range(128)),
        cpus_allowed=tuple(range(256)),
        numa=tuple(
            NumaNode(
                node=n,
                cpus=near[n],
                distances={m: 10 if m == n else 12 if m // 2 == n // 2 else 32 for m in range(nodes)},
            )
            for n in range(nodes)
        ),
        mems_allowed=tuple(range(nodes)),
        context_bytes=768 * MIB,
    )


def _mesh(a: int, b: int) -> bool:
    """The hybrid cube of eight GPUs with four links to different GPUs each."""
    return a // 4 == b // 4 or b - a == 4


def deployment(kind: str) -> Deployment:
    """Sixteen services: all of them share GPUs, or (``mixed``) groups, single GPUs, sharers and four without a GPU."""
    return Deployment.model_validate({"version": 1, "name": kind, "services": dict(_services(kind))})


def _services(kind: str) -> list[tuple[str, dict[str, object]]]:
    shared = [{"gpus": {"count": 1, "share": True}, "gpu_memory": f"{6 + 3 * i}GiB", "cpus": 4 + i} for i in range(16)]
    tight = [{"gpus": {"count": 1, "share": True}, "gpu_memory": f"{24 + i % 5}GiB", "cpus": 15} for i in range(16)]
    mixed = [
        {"gpus": 2, "tp_size": 2, "gpu_memory": "60GiB", "cpus": 16},
        {"gpus": 2, "tp_size": 2, "gpu_memory": "40GiB", "cpus": 16},
        *({"gpus": 1, "gpu_memory": f"{20 + 10 * i}GiB", "cpus": 8} for i in range(2)),
        *({"gpus": {"count": 1, "share": True}, "gpu_memory": f"{5 + 2 * i}GiB", "cpus": 3 + i} for i in range(8)),
        *({"cpus": 4} for _ in range(4)),
    ]
    entries = {"sharers": shared, "tight": tight, "mixed": mixed}[kind]
    return [(f"s{i:02}", {"runtime": "command", "argv": ["true"], **entry}) for i, entry in enumerate(entries)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    runs = parser.parse_args().runs
    hosts = {
        "2 nodes, NVLink throughout": host(2, linked="all", unlike=False),
        "8 nodes, no NVLink": host(8, linked="none", unlike=False),
        "4 nodes, NVLink cube": host(4, linked="mesh", unlike=False),
        "4 nodes, NVLink cube, no two GPUs alike": host(4, linked="mesh", unlike=True),
    }
    for label, machine in hosts.items():
        for kind in ("mixed", "sharers", "tight"):
            times_ms, best = [], True
            for _ in range(runs):
                start = time.perf_counter()
                plan = make(deployment(kind), machine)
                times_ms.append(1000 * (time.perf_counter() - start))
                best = not any(CUT_SHORT in note for note in plan.notes)
            proof = "proven best" if best else "not proven"
            median_ms, worst_ms = statistics.median(times_ms), max(times_ms)
            print(f"{label:42} {kind:8} median {median_ms:7.1f} ms  max {worst_ms:7.1f} ms  {proof}")


if __name__ == "__main__":
    main()
