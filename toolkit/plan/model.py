"""Who gets what: the plan as frozen data. Sizes are bytes; devices are UUIDs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class DeviceGrant:
    """One device (a GPU or a MIG slice) of a service; ``budget_bytes`` None: the need is unknown."""

    uuid: str
    index: int
    total_bytes: int | None
    budget_bytes: int | None


@dataclass(frozen=True)
class KvCapacity:
    """What the budget leaves for the KV cache of one device, counted in whole blocks."""

    bytes_per_token: int
    tokens_per_block: int
    blocks: int
    max_seq_len: int
    full_length_requests: int


@dataclass(frozen=True)
class ServicePlan:
    """Resources of one service. Sharers of a GPU have different waves: each starts after SERVING of the last.

    Where ``memory_bind`` is None a note says why. ``fixed_bytes``: all of a device's budget but the KV cache; None:
    unknown. ``kv_bytes_per_token`` 0: there is no KV cache. ``weights_bytes``: the part of them on one device.
    """

    name: str
    runtime: str
    devices: tuple[DeviceGrant, ...]
    cpus: tuple[int, ...]
    cpus_shared: bool
    numa_nodes: tuple[int, ...]
    memory_bind: tuple[int, ...] | None
    port: int
    wave: int
    after: tuple[str, ...]
    notes: tuple[str, ...] = ()
    kv: KvCapacity | None = None
    fixed_bytes: int | None = None
    kv_bytes_per_token: int | None = None
    weights_bytes: int | None = None


@dataclass(frozen=True)
class Reservation:
    """A slice of a device's memory; ``service`` None: held by a process that is not ours."""

    service: str | None
    size_bytes: int
    purpose: str


@dataclass(frozen=True)
class LedgerLine:
    device_uuid: str
    total_bytes: int
    reserved: tuple[Reservation, ...]

    @property
    def free_bytes(self) -> int:
        return self.total_bytes - sum(r.size_bytes for r in self.reserved)

    def free_without(self, services: frozenset[str]) -> int:
        """Bytes free while these services hold nothing."""
        return self.free_bytes + sum(r.size_bytes for r in self.reserved if r.service in services)


@dataclass(frozen=True)
class Plan:
    """A plan for one deployment on one host, services in start order."""

    deployment: str
    services: tuple[ServicePlan, ...]
    ledger: tuple[LedgerLine, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Grant:
    """What another deployment of this host already holds.

    ``owner`` is its name, for messages. ``devices``: UUID to the bytes held there, contexts included; None: the whole
    device. ``pids``: its processes, so that memory the driver sees in use by them is not counted a second time.
    """

    owner: str
    cpus: tuple[int, ...] = ()
    devices: Mapping[str, int | None] = field(default_factory=dict)
    ports: tuple[int, ...] = ()
    pids: frozenset[int] = frozenset()
