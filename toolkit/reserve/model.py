"""Claims and grants as frozen records; they are also the ledger file's JSON."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, model_validator

from toolkit.host.model import Record
from toolkit.processes import ProcessId, boot_id, is_alive, this_process

Resource = Literal["gpus", "gpu_memory", "cpus", "numa_memory", "port"]
Port = Annotated[int, Field(ge=1, le=65535)]


class Owner(Record):
    """The process that holds a grant. ``start_time``: clock ticks since boot; ``pid_namespace`` None: our own."""

    pid: int
    start_time: int
    deployment: str
    pid_namespace: int | None = None

    @classmethod
    def current(cls, deployment: str) -> Owner:
        """This process, as owner of that deployment's grants."""
        me = this_process()
        return cls(pid=me.pid, start_time=me.start_time, deployment=deployment, pid_namespace=me.pid_namespace)


class GpuClaim(Record):
    """One GPU or MIG device, by its full UUID. ``memory_bytes`` None: the need is unknown."""

    uuid: str
    share: bool = False
    memory_bytes: NonNegativeInt | None = None


class Request(Record):
    """What one service needs, granted whole or not at all. ``cpus`` are logical CPUs."""

    gpus: tuple[GpuClaim, ...] = ()
    cpus: tuple[NonNegativeInt, ...] = ()
    cpus_shared: bool = False
    numa_bytes: dict[int, NonNegativeInt] = Field(default_factory=dict)
    ports: tuple[Port, ...] = ()

    @model_validator(mode="after")
    def _named_once(self) -> Request:
        for name, items in (("gpus", [gpu.uuid for gpu in self.gpus]), ("cpus", self.cpus), ("ports", self.ports)):
            if len(set(items)) != len(items):
                raise ValueError(f"{name} names one thing twice: {list(items)}")
        return self


class Totals(Record):
    """What there is to grant: a device's bytes less what foreign processes hold; None or absent: unknown."""

    gpu_bytes: dict[str, int | None] = Field(default_factory=dict)
    numa_bytes: dict[int, int | None] = Field(default_factory=dict)


class Grant(Record):
    """A request that is held. ``deadline_s`` (seconds since boot): when it ends unless PRELOAD was reached before.

    ``kept_by``: a process that uses what was granted and may outlive the owner; the grant is held while either lives.
    """

    id: str
    owner: Owner
    service: str | None = None
    request: Request
    granted_at_s: float
    deadline_s: float | None
    kept_by: Owner | None = None


class State(Record):
    """The whole ledger. Grants of another boot mean nothing."""

    schema_version: Literal[1] = 1
    boot_id: str
    grants: tuple[Grant, ...] = ()


class Conflict(Record):
    """Why one resource cannot be granted. ``needed`` and ``available``: a count, or bytes of memory."""

    resource: Resource
    subject: str
    needed: int
    available: int
    holders: tuple[Grant, ...] = ()


class Refusal(Record):
    """Why nothing was granted: every conflict of the first service that has any."""

    service: str | None
    conflicts: tuple[Conflict, ...]


def owner_is_alive(owner: Owner) -> bool:
    """Whether the owner still runs; an owner of another pid namespace counts as alive, for we cannot see it."""
    namespace = this_process().pid_namespace if owner.pid_namespace is None else owner.pid_namespace
    return is_alive(ProcessId(owner.pid, owner.start_time, boot_id(), namespace)) is not False
