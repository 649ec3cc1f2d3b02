"""Does a device have free what the ledger says it has? Pure; asked just before exec, under the GPU's start lock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from toolkit.host.gpu_use import DeviceUse
from toolkit.host.model import Holder
from toolkit.units import MIB, format_bytes

# The driver counts in pages of 2 MiB and moves its own part a little; one context is planned with as much to spare.
TOLERANCE_BYTES = 64 * MIB


@dataclass(frozen=True)
class Neighbour:
    """What one deployment holds of a device besides the claim at hand, and the processes that use it.

    ``started``: one of its services there has begun, so that memory whose holder is hidden may be its.
    """

    granted_bytes: int
    pids: frozenset[int]
    started: bool = True


@dataclass(frozen=True)
class Shortage:
    """``free_bytes``: what is left beside the ledger's grants and ``strangers``, who hold memory without one."""

    uuid: str
    index: int
    needed_bytes: int
    free_bytes: int
    strangers: tuple[Holder, ...]
    overdrawn_bytes: int = 0

    def __str__(self) -> str:
        needed, free = format_bytes(self.needed_bytes), format_bytes(max(0, self.free_bytes))
        missing = format_bytes(self.needed_bytes - self.free_bytes)
        held = [f"{_named(holder)} holds {format_bytes(holder.used_bytes or 0)}" for holder in self.strangers]
        if self.overdrawn_bytes:
            held.append(f"other services use {format_bytes(self.overdrawn_bytes)} more than was granted to them")
        return f"{missing} of memory is missing on GPU {self.index}: {needed} needed, {free} left; {', '.join(held)}"


def shortage(needed_bytes: int, use: DeviceUse, neighbours: Sequence[Neighbour]) -> Shortage | None:
    """What the device lacks of ``needed_bytes``; None: it is there, or the driver doesn't tell."""
    if use.total_bytes is None or use.used_bytes is None:
        return None
    visible = [_visible_bytes(use, neighbour) for neighbour in neighbours]
    taken = sum(max(size, n.granted_bytes) for size, n in zip(visible, neighbours, strict=True))
    overdrawn = sum(max(0, size - n.granted_bytes) for size, n in zip(visible, neighbours, strict=True))
    hidden = sum(n.granted_bytes for size, n in zip(visible, neighbours, strict=True) if n.started and not size)
    rest_bytes = use.used_bytes - sum(visible)
    strangers = _strangers(use, neighbours, rest_bytes, hidden)
    free_bytes = use.total_bytes - taken - sum(holder.used_bytes or 0 for holder in strangers)
    if free_bytes + TOLERANCE_BYTES >= needed_bytes:
        return None
    return Shortage(use.uuid, use.index, needed_bytes, free_bytes, strangers, overdrawn)


def _visible_bytes(use: DeviceUse, neighbour: Neighbour) -> int:
    return sum(holder.used_bytes or 0 for holder in use.holders if holder.pid in neighbour.pids)


def _strangers(use: DeviceUse, neighbours: Sequence[Neighbour], rest_bytes: int, hidden: int) -> tuple[Holder, ...]:
    """Holders without a grant; what nobody is named for is one unknown holder, less what started neighbours may be."""
    ours = frozenset().union(*(neighbour.pids for neighbour in neighbours))
    named = [h for h in use.holders if h.used_bytes and h.pid not in ours and (h.pid is not None or h.name)]
    unknown_bytes = rest_bytes - sum(holder.used_bytes or 0 for holder in named) - hidden
    unknown = [Holder(pid=None, name=None, used_bytes=unknown_bytes)] if unknown_bytes > 0 else []
    return (*named, *unknown)


def _named(holder: Holder) -> str:
    if holder.pid is None:
        return "the driver" if holder.name == "driver" else "unknown holder"
    return f"{holder.name or 'process'} (pid {holder.pid})"
