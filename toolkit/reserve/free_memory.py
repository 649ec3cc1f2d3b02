"""Is a device as free as the ledger says? Pure; asked just before exec, under the GPU's start lock."""

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
class Difference:
    """How a device differs from what the ledger says of it.

    ``needed_bytes`` None: the need is unknown. ``free_bytes``: what is left beside the ledger's grants and
    ``strangers``, who hold memory without one. ``unplanned_bytes``: how much more they hold than at the plan;
    ``overdrawn_bytes``: how much more than their grants others use.
    """

    uuid: str
    index: int
    needed_bytes: int | None
    free_bytes: int
    strangers: tuple[Holder, ...]
    unplanned_bytes: int
    overdrawn_bytes: int

    @property
    def blocks(self) -> bool:
        """Whether what is needed is not there."""
        return self.needed_bytes is not None and self.free_bytes + TOLERANCE_BYTES < self.needed_bytes

    def __str__(self) -> str:
        held = [f"{_named(holder)} holds {format_bytes(holder.used_bytes or 0)}" for holder in self.strangers]
        if self.overdrawn_bytes:
            held.append(f"other services use {format_bytes(self.overdrawn_bytes)} more than was granted to them")
        return f"{self._amount()}: {', '.join(held)}" if held else self._amount()

    def _amount(self) -> str:
        if not self.blocks or self.needed_bytes is None:
            more = format_bytes(max(self.unplanned_bytes, self.overdrawn_bytes))
            return f"{more} more than planned is in use on GPU {self.index}"
        needed, free = format_bytes(self.needed_bytes), format_bytes(max(0, self.free_bytes))
        missing = format_bytes(self.needed_bytes - self.free_bytes)
        return f"{missing} of memory is missing on GPU {self.index} ({needed} needed, {free} left)"


def compare(
    needed_bytes: int | None, use: DeviceUse, neighbours: Sequence[Neighbour], grantable_bytes: int | None = None
) -> Difference | None:
    """How the device differs from the ledger; None: it doesn't, or the driver doesn't tell.

    ``grantable_bytes``: the device's memory less what strangers held when the plan was made; None: unknown.
    """
    if use.total_bytes is None or use.used_bytes is None:
        return None
    visible = [_visible_bytes(use, neighbour) for neighbour in neighbours]
    pairs = list(zip(visible, neighbours, strict=True))
    hidden = sum(n.granted_bytes for size, n in pairs if n.started and not size)
    strangers = _strangers(use, neighbours, use.used_bytes - sum(visible), hidden)
    theirs = sum(holder.used_bytes or 0 for holder in strangers)
    planned = theirs if grantable_bytes is None else use.total_bytes - grantable_bytes
    found = Difference(
        use.uuid,
        use.index,
        needed_bytes,
        free_bytes=use.total_bytes - theirs - sum(max(size, n.granted_bytes) for size, n in pairs),
        strangers=strangers,
        unplanned_bytes=max(0, theirs - planned),
        overdrawn_bytes=sum(max(0, size - n.granted_bytes) for size, n in pairs),
    )
    differs = max(found.unplanned_bytes, found.overdrawn_bytes) > TOLERANCE_BYTES
    return found if found.blocks or differs else None


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
