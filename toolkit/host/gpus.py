"""GPUs of this machine, asked of NVML first and of /sys and ``nvidia-smi topo -m`` where it doesn't know."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from toolkit.errors import ToolkitError
from toolkit.host import pci, topology
from toolkit.host.holders import holders
from toolkit.host.model import Gpu, GpuLink, Holder, MigDevice, NumaNode
from toolkit.host.nvml import Device, MigFacts, NvLink, Nvml, NvmlError

T = TypeVar("T")
Run = Callable[[list[str]], "str | None"]


@dataclass(frozen=True)
class GpuFacts:
    """What NVML and nvidia-smi tell; ``notes``: what they do not."""

    gpus: tuple[Gpu, ...] = ()
    links: tuple[GpuLink, ...] = ()
    driver_version: str | None = None
    cuda_driver_version: str | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Sources:
    """Whom to ask: NVML, the two trees, the NUMA nodes found there, and a way to run nvidia-smi."""

    nvml: Nvml
    sysfs: Path
    proc: Path
    nodes: tuple[NumaNode, ...]
    run: Run


def read(sources: Sources) -> GpuFacts:
    """Everything NVML tells; a GPU that doesn't answer is left out and noted."""
    notes: list[str] = []
    nvml = sources.nvml
    answers = [_answer(sources, index, notes) for index in range(_ask(nvml.count) or 0)]
    gpus = {gpu.index: gpu for gpu, _ in filter(None, answers)}
    nvlinks = {gpu.index: found for gpu, found in filter(None, answers)}
    links = [_link(nvml, gpus[a], gpus[b], nvlinks) for a, b in itertools.combinations(gpus, 2)]
    found = tuple(gpus.values())
    if any(gpu.numa_nodes is None or gpu.cpus is None for gpu in found) or any(link.link is None for link in links):
        found, links = _completed(found, links, _topo(sources.run, notes))
    notes += [f"the NUMA node of GPU {gpu.index} is unknown" for gpu in found if gpu.numa_nodes is None]
    return GpuFacts(found, tuple(links), _ask(nvml.driver_version), _ask(nvml.cuda_version), tuple(notes))


def _answer(sources: Sources, index: int, notes: list[str]) -> tuple[Gpu, tuple[NvLink, ...]] | None:
    try:
        device = sources.nvml.device(index)
        return _gpu(index, device, sources), _ask(device.nvlinks) or ()
    except NvmlError as error:
        notes.append(f"GPU {index} doesn't answer ({error}); it is left out, and may need a reset")
        return None


def _ask(question: Callable[[], T]) -> T | None:
    try:
        return question()
    except NvmlError:
        return None


def _gpu(index: int, device: Device, sources: Sources) -> Gpu:
    proc = sources.proc
    bus_id = pci.address(_ask(device.pci_bus_id) or "")
    memory, own = _ask(device.memory), _ask(device.own_numa_node)
    numa, cpus = _affinity(device, bus_id, sources)
    mig = _ask(device.mig)
    return Gpu(
        index=index,
        uuid=device.uuid(),
        name=_ask(device.name),
        pci_bus_id=bus_id,
        compute_capability=_ask(device.compute_capability),
        memory_bytes=memory.total_bytes if memory else None,
        used_bytes=memory.used_bytes + memory.reserved_bytes if memory else None,
        holders=holders(proc, _ask(device.processes), memory) if mig is None else _reserved_only(proc, device),
        numa_nodes=numa,
        gpu_numa_id=own if own is not None and own >= 0 else None,
        cpus=cpus,
        compute_mode=_ask(device.compute_mode),
        mig=None if mig is None else tuple(_mig(facts, proc) for facts in mig),
    )


def _reserved_only(proc: Path, device: Device) -> tuple[Holder, ...]:
    """Processes on a partitioned GPU belong to its slices; only what the driver lists on the whole is kept."""
    return holders(proc, _ask(device.processes), None)


def _mig(facts: MigFacts, proc: Path) -> MigDevice:
    return MigDevice(
        uuid=facts.uuid,
        index=facts.index,
        profile=facts.profile,
        memory_bytes=facts.memory.total_bytes,
        used_bytes=facts.memory.used_bytes + facts.memory.reserved_bytes,
        holders=holders(proc, facts.processes, facts.memory),
    )


def _affinity(
    device: Device, bus_id: str | None, sources: Sources
) -> tuple[tuple[int, ...] | None, tuple[int, ...] | None]:
    """NUMA nodes and CPUs near the GPU: /sys, then NVML. A node without CPUs is the GPU's own memory, no answer."""
    with_cpus = {node.node: node.cpus for node in sources.nodes if node.cpus}
    place = pci.place(sources.sysfs, bus_id) if bus_id else None
    if place and place.numa_node in with_cpus:
        return (place.numa_node,), _ask(device.cpus) or with_cpus[place.numa_node]
    near = _ask(device.numa_nodes) or ()
    return (near if with_cpus.keys() & set(near) else None), _ask(device.cpus) or None


def _link(nvml: Nvml, a: Gpu, b: Gpu, nvlinks: Mapping[int, tuple[NvLink, ...]]) -> GpuLink:
    direct = sum(pci.address(link.remote_bus_id or "") == b.pci_bus_id is not None for link in nvlinks[a.index])
    switched = min(sum(link.remote == "switch" for link in nvlinks[gpu.index]) for gpu in (a, b))
    peers = _ask(lambda: nvml.peers_over_nvlink(a.index, b.index))
    if direct or (switched and peers is not False):
        name: str | None = f"NV{direct or switched}"
    elif peers:
        name = None  # linked, but a virtual machine hides by how many: nvidia-smi may tell
    else:
        name = _ask(lambda: nvml.ancestor(a.index, b.index))
    return GpuLink(a=a.index, b=b.index, link=name)


def _topo(run: Run, notes: list[str]) -> dict[str, Any]:
    text = run(["nvidia-smi", "topo", "-m"])
    if text is None:
        return {}
    try:
        return topology.parse(text)
    except ToolkitError as error:
        notes.append(f"nvidia-smi topo -m: {error.what}")
        return {}


def _completed(
    gpus: tuple[Gpu, ...], links: list[GpuLink], topo: Mapping[str, Any]
) -> tuple[tuple[Gpu, ...], list[GpuLink]]:
    """What is unknown so far, filled in from ``nvidia-smi topo -m``; its GPU numbers are NVML's indices."""
    said = {gpu["index"]: Gpu.model_validate(_as_gpu(gpu)) for gpu in topo.get("gpus", ())}
    pairs: Mapping[str, str | None] = topo.get("links", {})
    return (
        tuple(_filled(gpu, said.get(gpu.index)) for gpu in gpus),
        [link if link.link else link.model_copy(update={"link": pairs.get(f"{link.a}-{link.b}")}) for link in links],
    )


def _as_gpu(said: Mapping[str, Any]) -> dict[str, Any]:
    unknown = {"uuid": "", "name": None, "memory_bytes": None, "used_bytes": None}
    return {**unknown, "index": said["index"], "numa_nodes": said["numa"], "cpus": said["cpus"]}


def _filled(gpu: Gpu, said: Gpu | None) -> Gpu:
    if said is None:
        return gpu
    return gpu.model_copy(
        update={
            "numa_nodes": gpu.numa_nodes if gpu.numa_nodes is not None else said.numa_nodes,
            "cpus": gpu.cpus if gpu.cpus is not None else said.cpus,
        }
    )
