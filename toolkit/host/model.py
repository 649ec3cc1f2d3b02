"""One machine as a frozen record. Unknown is None and is never guessed; sizes are bytes."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, PlainSerializer

from toolkit.units import format_cpu_list, parse_cpu_list

UNLIMITED = (1 << 63) - 1  # a limit that is "unlimited"; None stays unknown


class Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def _numbers(value: object) -> object:
    return parse_cpu_list(value) if isinstance(value, str) else value


# Numbers in code; in JSON the kernel's list, such as "0-15,32-47".
CpuList = Annotated[
    tuple[int, ...],
    BeforeValidator(_numbers, json_schema_input_type=str | list[int]),
    PlainSerializer(format_cpu_list, return_type=str, when_used="json"),
]


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
    cpus: CpuList | None = None
    compute_mode: str | None = None
    mig: tuple[MigDevice, ...] | None = None


class GpuLink(Record):
    """How two GPUs (indices, a < b) reach each other: NV1.., PIX, PXB, PHB, NODE, SYS; None: unknown."""

    a: int
    b: int
    link: str | None


class Core(Record):
    """A physical core: its logical CPUs (SMT siblings) and the NUMA node, cache group and socket it belongs to."""

    cpus: CpuList
    numa_node: int | None = None
    cache_group: int | None = None
    socket: int | None = None


class NumaNode(Record):
    """``cpus`` empty: a memory-only node (a GPU's own memory, say). ``distances``: node to the kernel's number."""

    node: int
    cpus: CpuList
    memory_bytes: int | None = None
    distances: dict[int, int] = {}


class Nic(Record):
    """``nearest_gpus``: indices at the closest level, which is ``link``; None: unknown."""

    name: str
    pci_bus_id: str | None = None
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
    cpus_allowed: CpuList
    numa: tuple[NumaNode, ...] = ()
    mems_allowed: CpuList | None = None
    nics: tuple[Nic, ...] = ()
    memory_bytes: int | None = None
    limits: ContainerLimits = ContainerLimits()
    mps_daemon: bool | None = None
    context_bytes: int | None = None
    recorded: bool = False
    notes: tuple[str, ...] = ()
