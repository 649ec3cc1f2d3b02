"""The memory ledger: what each device has, who holds how much of it and for what, in bytes of whole MiB."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from toolkit.plan import kv
from toolkit.plan.devices import Device, ceil_mib, floor_mib
from toolkit.plan.model import KvCapacity, LedgerLine, Reservation
from toolkit.plan.need import Need
from toolkit.plan.refusal import does_not_fit
from toolkit.units import MIB, format_bytes


@dataclass(frozen=True)
class Share:
    """A service on its devices: its budget on each (None: unknown) and the most that is of use to it."""

    name: str
    positions: tuple[int, ...]
    budget_bytes: int | None
    most_bytes: int | None = None
    need: Need | None = None


def budget(written_bytes: int | None, need: Need | None) -> tuple[int | None, int | None]:
    """Least and most bytes of use on each device: the same where a budget is written, (None, None) when unknown."""
    if written_bytes is not None:
        whole = ceil_mib(written_bytes)
        return whole, whole
    if need is None or need.least_bytes is None or need.most_bytes is None:
        return None, None
    return ceil_mib(need.least_bytes), ceil_mib(need.most_bytes)


def refuse_too_little(name: str, budget_bytes: int | None, need: Need | None) -> None:
    """Raises ToolkitError when a written budget does not hold one request of full length."""
    if budget_bytes is None or need is None or need.least_bytes is None or need.least_bytes <= budget_bytes:
        return
    parts = f"{format_bytes(need.fixed_bytes or 0)} beside the KV cache and {format_bytes(need.kv_bytes(1) or 0)} of it"
    raise does_not_fit(
        f"{format_bytes(budget_bytes)} is too little for one request of full length: {parts}",
        resource="gpu_memory",
        needed=ceil_mib(need.least_bytes) // MIB,
        available=floor_mib(budget_bytes) // MIB,
        services=[name],
        key="gpu_memory",
        hint="Raise 'gpu_memory' or lower the sequence length.",
    )


def grown(shares: Sequence[Share], devices: Sequence[Device], context_bytes: int) -> dict[str, int | None]:
    """Budgets after what is left was divided among those that can use more, evenly at first, then in file order."""
    budgets = {share.name: share.budget_bytes for share in shares}
    left = _left(shares, budgets, devices, context_bytes)
    growing = {p: sum(p in share.positions for share in shares if _appetite(share, budgets)) for p in left}
    even = {p: floor_mib(size_bytes // max(1, growing[p])) for p, size_bytes in left.items()}
    for share in shares:
        _grow(share, budgets, even)
    for share in shares:
        _grow(share, budgets, _left(shares, budgets, devices, context_bytes))
    return budgets


def _left(
    shares: Sequence[Share], budgets: Mapping[str, int | None], devices: Sequence[Device], context_bytes: int
) -> dict[int, int]:
    """Bytes of each device that no budget or context takes; none of a device of unknown size."""
    taken = {
        p: sum((budgets[share.name] or 0) + context_bytes for share in shares if p in share.positions)
        for p in range(len(devices))
    }
    return {p: max(0, (device.usable_bytes or 0) - taken[p]) for p, device in enumerate(devices)}


def _appetite(share: Share, budgets: Mapping[str, int | None]) -> int:
    """Bytes by which a budget can usefully grow."""
    now = budgets[share.name]
    return 0 if now is None or share.most_bytes is None else max(0, share.most_bytes - now)


def _grow(share: Share, budgets: dict[str, int | None], room: Mapping[int, int]) -> None:
    """Grows a budget as far as there is room on each of its devices."""
    now = budgets[share.name]
    if now is not None:
        budgets[share.name] = now + min(_appetite(share, budgets), *(room[p] for p in share.positions))


def capacity(need: Need | None, budget_bytes: int | None) -> KvCapacity | None:
    """What the KV cache of this budget holds; None when there is none or its size is unknown."""
    if need is None or need.fixed_bytes is None or budget_bytes is None:
        return None
    if not need.kv_bytes_per_token or need.max_seq_len is None:
        return None
    left = budget_bytes - need.fixed_bytes
    return kv.capacity(left, need.kv_bytes_per_token, need.max_seq_len, need.tokens_per_block or 1)


def ledger(
    shares: Sequence[Share], budgets: Mapping[str, int | None], devices: Sequence[Device], context_bytes: int
) -> tuple[LedgerLine, ...]:
    """One line for each device in use whose memory is known, in device order."""
    lines = []
    for position, device in enumerate(devices):
        here = [share for share in shares if position in share.positions]
        if here and device.total_bytes is not None:
            ours = [r for share in here for r in _reservations(share, budgets[share.name], context_bytes)]
            lines.append(LedgerLine(device.uuid, device.total_bytes, (*device.held, *ours)))
    return tuple(lines)


def _reservations(share: Share, budget_bytes: int | None, context_bytes: int) -> Iterable[Reservation]:
    if budget_bytes is not None:
        yield from _parts(share, budget_bytes)
    yield Reservation(share.name, context_bytes, "CUDA context")


def _parts(share: Share, budget_bytes: int) -> Iterable[Reservation]:
    """The budget by purpose where that is known. Parts are rounded down to MiB, the last one takes the rest."""
    need = share.need
    if need is None or need.fixed_bytes is None or need.fixed_bytes > budget_bytes:
        yield Reservation(share.name, budget_bytes, "budget")
        return
    sizes = {
        "weights": need.weights_bytes,
        "activations": need.activation_bytes,
        "CUDA graphs": need.graph_pool_bytes,
    }
    left = budget_bytes
    for purpose, size_bytes in sizes.items():
        if size_bytes and floor_mib(size_bytes):
            yield Reservation(share.name, floor_mib(size_bytes), purpose)
            left -= floor_mib(size_bytes)
    if left:
        yield Reservation(share.name, left, "KV cache" if need.kv_bytes_per_token else "rest of the budget")
