"""What each service asks of the GPUs, as the search sees it."""

from __future__ import annotations

from dataclasses import dataclass

from toolkit.config.models import Service
from toolkit.plan.cores import CoreWish, wish
from toolkit.plan.devices import ceil_mib


@dataclass(frozen=True)
class Demand:
    """``groups`` runs of ``size`` devices each, ``need_bytes`` of memory on each with its CUDA context.

    ``alone``: no second service on its devices. ``same`` and ``linked``: how many devices of a group must be of one
    model, and pairwise joined by NVLink. ``choice``: positions it may use; None: any.
    """

    name: str
    cores: CoreWish
    groups: int
    size: int
    tensor_parallel: bool
    need_bytes: int
    alone: bool
    same: int = 1
    linked: int = 1
    mig_allowed: bool = True
    choice: frozenset[int] | None = None

    @property
    def count(self) -> int:
        """Devices in all."""
        return self.groups * self.size


def demand(
    name: str, service: Service, budget_bytes: int | None, context_bytes: int, choice: frozenset[int] | None
) -> Demand:
    """The demand of a service with GPUs; ``budget_bytes`` None: its need is unknown, so nothing is put beside it."""
    grouped = service.tp_size > 1
    size = service.tp_size if grouped else service.gpus.size
    return Demand(
        name=name,
        cores=wish(name, service),
        groups=service.gpus.size // size,
        size=size,
        tensor_parallel=grouped,
        need_bytes=context_bytes + ceil_mib(budget_bytes or 0),
        alone=budget_bytes is None or not service.gpus.share,
        same=size if grouped else 1,
        linked=size if grouped and service.nvlink == "required" else 1,
        mig_allowed=service.world_size == 1,
        choice=choice,
    )
