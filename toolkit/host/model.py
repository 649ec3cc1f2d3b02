"""One machine as a frozen record. Unknown is None and is never guessed; sizes are bytes."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict


class Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Holder(Record):
    """A process that holds memory of a GPU; ``pid`` None: seen by the driver, outside our pid namespace."""

    pid: int | None
    name: str | None
    used_bytes: int | None


class MigDevice(Record):
    uuid: str
    index: int
    profile: str | None
    memory_bytes: int
    used_bytes: int = 0
    holders: tuple[Holder, ...] = ()


class Gpu(Record):
    """``index`` is nvidia-smi's (PCI bus order). ``mig`` None: MIG is off; a tuple: only its entries can be used."""

    index: int
    uuid: str
    name: str | None
    pci_bus_id: str | None = None
    compute_capability: str | None = None
    memory_bytes: int | None
    used_bytes: int | None
    holders: tuple[Holder, ...] = ()
    numa_nodes: tuple[int, ...] | None = None
    gpu_numa_id: int | None = None
    cpus: tuple[int, ...] | None = None
    compute_mode: str | None = None
    mig: tuple[MigDevice, ...] | None = None


class GpuLink(Record):
    """How two GPUs (indices, a < b) reach each other: NV1.., PIX, PXB, PHB, NODE, SYS; None: unknown."""

    a: int
    b: int
    link: str | None


class Core(Record):
    """A physical core: its logical CPUs (SMT siblings) and the NUMA node and cache group it belongs to."""

    cpus: tuple[int, ...]
    numa_node: int | None = None
    cache_group: int | None = None


class NumaNode(Record):
    """``cpus`` empty: a memory-only node (a GPU's own memory, say). ``distances``: node to the kernel's number."""

    node: int
    cpus: tuple[int, ...]
    memory_bytes: int | None = None
    distances: dict[int, int] = {}


class Nic(Record):
    name: str
    numa_node: int | None = None
    nearest_gpus: tuple[int, ...] | None = None
    link: str | None = None


class ContainerLimits(Record):
    """What the surrounding cgroups and namespaces leave us."""

    cpu_quota: float | None = None
    memory_bytes: int | None = None
    memory_used_bytes: int | None = None
    shm_bytes: int | None = None
    memlock_bytes: int | None = None
    open_files: int | None = None
    cgroup_version: Literal[1, 2] | None = None
    mempolicy_permitted: bool | None = None


class Host(Record):
    """``cpus_allowed`` and ``mems_allowed`` bound every plan. ``context_bytes``: what one CUDA context takes here."""

    schema_version: Literal[1] = 1
    hostname: str | None = None
    driver_version: str | None = None
    cuda_driver_version: str | None = None
    gpus: tuple[Gpu, ...] = ()
    links: tuple[GpuLink, ...] = ()
    cores: tuple[Core, ...]
    cpus_allowed: tuple[int, ...]
    numa: tuple[NumaNode, ...] = ()
    mems_allowed: tuple[int, ...] | None = None
    nics: tuple[Nic, ...] = ()
    memory_bytes: int | None = None
    limits: ContainerLimits = ContainerLimits()
    mps_daemon: bool | None = None
    context_bytes: int | None = None
    recorded: bool = False
    notes: tuple[str, ...] = ()
