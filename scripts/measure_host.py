#!/usr/bin/env python3
"""Reads this machine, times that, and holds it against what nvidia-smi prints; with a GPU a CUDA context is measured.

    PYTHONPATH=. python scripts/measure_host.py [--runs N] [--json FILE]

JSON on standard output: seconds, the host, the texts of nvidia-smi with their readings, contexts, and ``disagree``: one
sentence for each fact that two sources tell differently. The same sentences go to standard error.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from toolkit import affinity
from toolkit.errors import ToolkitError
from toolkit.host import context, gpu_use, pci, record, topology
from toolkit.host.model import Gpu, Host
from toolkit.host.probe import probe, run_program
from toolkit.units import MIB, format_bytes, parse_cpu_list

FIELDS = "index,uuid,name,memory.total,memory.used,pci.bus_id,compute_cap,compute_mode,driver_version"
COMMANDS = {
    "topo": ["nvidia-smi", "topo", "-m"],
    "list": ["nvidia-smi", "-L"],
    "csv": ["nvidia-smi", f"--query-gpu={FIELDS}", "--format=csv"],
}
MOVES_MIB = 256  # memory in use changes between two looks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write the document here too")
    options = parser.parse_args()
    document = measured(options.runs)
    text = json.dumps(document, indent=1)
    print(text)
    if options.json:
        options.json.write_text(text + "\n")
    tell(document)


def measured(runs: int) -> dict[str, Any]:
    """The whole document."""
    times = [timed(lambda: probe(mempolicy_permitted=affinity.probe_mempolicy_permitted)) for _ in range(runs)]
    host = times[-1][1]
    texts = {kind: run_program(argv) for kind, argv in COMMANDS.items()} if host.gpus else {}
    readings = {kind: reading(text) for kind, text in texts.items() if text is not None}
    return {
        "schema": 1,
        "probe_s": {"median": statistics.median(s for s, _ in times), "max": max(s for s, _ in times), "runs": runs},
        "gpu_use_s": timed(gpu_use.read)[0],
        "host": record.document(host),
        "texts": texts,
        "readings": readings,
        "contexts": [of_context(gpu) for gpu in host.gpus],
        "disagree": [*disagreements(host, readings)],
    }


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    began_s = time.perf_counter()
    result = work()
    return time.perf_counter() - began_s, result


def reading(text: str) -> dict[str, Any]:
    """The facts of a text, or why it could not be read."""
    try:
        return topology.parse(text)
    except ToolkitError as error:
        return {"kind": "refused", "why": error.what, **error.details}


def of_context(gpu: Gpu) -> dict[str, Any]:
    """What a context takes on a GPU (on its first slice where it is partitioned), twice."""
    device = gpu.mig[0] if gpu.mig else gpu
    runs = [timed(lambda: context.measure_on(device.uuid)) for _ in range(2)] if context.pick([(gpu, device)]) else []
    sizes = [size for _, size in runs]
    return {"index": gpu.index, "uuid": device.uuid, "bytes": sizes, "seconds": [round(s, 3) for s, _ in runs]}


def disagreements(host: Host, readings: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Facts that the host and a reading tell differently; what one of them doesn't tell is no conflict."""
    for kind, facts in readings.items():
        if facts["kind"] == "refused":
            yield f"{' '.join(COMMANDS[kind])} could not be read: {facts['why']}"
        else:
            yield from {"topo": _topo, "list": _list, "csv": _csv}[kind](host, facts)


def _topo(host: Host, facts: Mapping[str, Any]) -> Iterator[str]:
    said = {gpu["index"]: gpu for gpu in facts["gpus"]}
    for gpu in host.gpus:
        entry = said.get(gpu.index)
        if entry is None:
            yield f"GPU {gpu.index} is not in nvidia-smi topo -m"
            continue
        cpus = None if entry["cpus"] is None else parse_cpu_list(entry["cpus"])
        yield from _differ(f"CPUs near GPU {gpu.index}", gpu.cpus, cpus)
        numa = None if entry["numa"] is None else tuple(entry["numa"])
        yield from _differ(f"NUMA nodes of GPU {gpu.index}", gpu.numa_nodes, numa)
        yield from _differ(f"own NUMA node of GPU {gpu.index}", gpu.gpu_numa_id, entry["gpu_numa_id"])
    for link in host.links:
        yield from _differ(f"link {link.a}-{link.b}", link.link, facts["links"].get(f"{link.a}-{link.b}"))


def _list(host: Host, facts: Mapping[str, Any]) -> Iterator[str]:
    said = {gpu["index"]: gpu for gpu in facts["gpus"]}
    for gpu in host.gpus:
        entry = said.get(gpu.index, {})
        yield from _differ(f"UUID of GPU {gpu.index}", gpu.uuid, entry.get("uuid"))
        yield from _differ(f"name of GPU {gpu.index}", gpu.name, entry.get("name"))
        slices = sorted(part.uuid for part in gpu.mig or ())
        yield from _differ(f"slices of GPU {gpu.index}", slices, sorted(mig["uuid"] for mig in entry.get("mig", [])))


def _csv(host: Host, facts: Mapping[str, Any]) -> Iterator[str]:
    rows = {row["index"]: row for row in facts["rows"]}
    for gpu in host.gpus:
        row = rows.get(gpu.index, {})
        own = f"of GPU {gpu.index}"
        yield from _differ(f"UUID {own}", gpu.uuid, row.get("uuid"))
        yield from _differ(f"name {own}", gpu.name, row.get("name"))
        yield from _differ(f"PCI address {own}", gpu.pci_bus_id, pci.address(row.get("pci.bus_id") or ""))
        yield from _differ(f"compute capability {own}", gpu.compute_capability, row.get("compute_cap"))
        yield from _differ(f"compute mode {own}", gpu.compute_mode, row.get("compute_mode"))
        yield from _differ("driver", host.driver_version, row.get("driver_version"))
        total = None if gpu.memory_bytes is None else gpu.memory_bytes // MIB
        yield from _differ(f"MiB {own}", total, row.get("memory.total"))
        yield from _used(gpu, row.get("memory.used"))


def _used(gpu: Gpu, said_mib: int | None) -> Iterator[str]:
    """nvidia-smi leaves the driver's own memory out."""
    driver = sum(holder.used_bytes or 0 for holder in gpu.holders if holder.name == "driver")
    if gpu.used_bytes is None or said_mib is None:
        return
    ours_mib = (gpu.used_bytes - driver) // MIB
    if abs(ours_mib - said_mib) > MOVES_MIB:
        yield f"MiB in use of GPU {gpu.index}: {ours_mib} here, {said_mib} by nvidia-smi"


def _differ(what: str, ours: Any, theirs: Any) -> Iterator[str]:
    if ours is not None and theirs is not None and ours != theirs:
        yield f"{what}: {ours} here, {theirs} by nvidia-smi"


def tell(document: Mapping[str, Any]) -> None:
    """The document in a few lines, for a person."""
    seconds, gpus = document["probe_s"], document["host"]["gpus"]
    lines = [f"probe: median {seconds['median']:.3f} s, max {seconds['max']:.3f} s; {len(gpus)} GPUs"]
    for entry in document["contexts"]:
        sizes = ", ".join("not measured" if size is None else format_bytes(size) for size in entry["bytes"])
        lines.append(f"CUDA context on GPU {entry['index']}: {sizes or 'not measured: no idle GPU'}")
    untold = [kind for kind, text in document["texts"].items() if text is None]
    lines += [f"nvidia-smi gave nothing for: {', '.join(untold)}"] if untold else []
    lines += [f"DISAGREE  {each}" for each in document["disagree"]]
    if document["readings"] and not document["disagree"]:
        lines.append(f"nvidia-smi agrees ({', '.join(document['readings'])})")
    sys.stderr.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
