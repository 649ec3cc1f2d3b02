"""Why nothing fits: the demands are made one by one as hard as they are, and the first that is too much is named."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from toolkit.errors import ToolkitError
from toolkit.plan.board import Board
from toolkit.plan.demand import Demand
from toolkit.plan.devices import Device
from toolkit.plan.placement import Placement
from toolkit.plan.refusal import count, does_not_fit, listed
from toolkit.units import MIB, format_bytes

PLENTY_BYTES = 1 << 60

Solve = Callable[[Sequence[Demand], Sequence[Device]], "tuple[Placement, Board] | None"]
"""Some placement of demands on devices, and its board; None: there is none."""


@dataclass(frozen=True)
class Case:
    """What could not be placed, where, and the means to try again. ``barred``: devices that are out of reach."""

    demands: tuple[Demand, ...]
    devices: tuple[Device, ...]
    barred: tuple[Device, ...]
    solve: Solve

    def fits(self, demands: Sequence[Demand], devices: Sequence[Device]) -> bool:
        return self.solve(demands, devices) is not None


def explain(case: Case) -> ToolkitError:
    """The refusal, with the resource at fault and how much of it is missing."""
    roomy = [_roomy(device) for device in case.devices]
    light = [replace(d, need_bytes=0, same=1, linked=1, mig_allowed=True) for d in case.demands]
    if not case.fits(light, roomy):
        return _too_few(case, light, roomy)
    whole = [replace(d, mig_allowed=o.mig_allowed) for d, o in zip(light, case.demands, strict=True)]
    if not case.fits(whole, roomy):
        return _on_slices(case, light, whole, roomy)
    alike = [replace(d, same=o.same) for d, o in zip(whole, case.demands, strict=True)]
    if not case.fits(alike, roomy):
        return _unlike(case, whole, alike, roomy)
    linked = [replace(d, linked=o.linked) for d, o in zip(alike, case.demands, strict=True)]
    if not case.fits(linked, roomy):
        return _unlinked(case, alike, linked, roomy)
    return _out_of_memory(case)


def _roomy(device: Device) -> Device:
    return replace(device, usable_bytes=None if device.usable_bytes is None else PLENTY_BYTES)


def _too_few(case: Case, light: Sequence[Demand], roomy: Sequence[Device]) -> ToolkitError:
    pinned = _pinned_twice(case)
    if pinned is not None:
        return pinned
    spare = Device("", -1, None, PLENTY_BYTES, PLENTY_BYTES, False, (), None, None)
    most = sum(demand.count for demand in light)
    extra = next((n for n in range(1, most) if case.fits(light, [*roomy, *[spare] * n])), most)
    have = len(case.devices)
    names = [demand.name for demand in case.demands]
    out_of_reach = f" ({_barred(case.barred)})" if case.barred else ""
    return does_not_fit(
        f"{count(have + extra, 'GPU')} needed ({listed(names)}), and this host has {have or 'none'} free{out_of_reach}",
        resource="gpus",
        needed=have + extra,
        available=have,
        services=names,
        key="gpus",
        hint="Ask for fewer, or let services that fit together share one ('share: true'). See 'coexist host'.",
    )


def _barred(devices: Sequence[Device]) -> str:
    return ", ".join(f"{device.label}: {device.barred}" for device in devices)


def _pinned_twice(case: Case) -> ToolkitError | None:
    """The refusal when services that do not share named the same device."""
    for position, device in enumerate(case.devices):
        on = [d for d in case.demands if d.choice is not None and position in d.choice and len(d.choice) == d.count]
        if len(on) > 1 and (device.exclusive or any(demand.alone for demand in on)):
            names = [demand.name for demand in on]
            return does_not_fit(
                f"{listed(names)} each name {device.label}, and do not all share it with a known need",
                resource="gpus",
                needed=len(on),
                available=1,
                services=names,
                key="gpus",
                hint="Name different GPUs, or write 'share: true' and 'gpu_memory' for each of them.",
            )
    return None


def _to_blame(
    case: Case, easy: Sequence[Demand], hard: Sequence[Demand], devices: Sequence[Device]
) -> tuple[list[Demand], list[Demand]]:
    """The hard demands at fault, and those to count beside the first of them.

    At fault are those that do not fit even by themselves; else those of which easing any one is enough; else all.
    """
    differ = [i for i, (a, b) in enumerate(zip(easy, hard, strict=True)) if a != b]
    by_themselves = [hard[i] for i in differ if not case.fits([hard[i]], devices)]
    if by_themselves:
        return by_themselves, []
    guilty = [i for i in differ if case.fits([*hard[:i], easy[i], *hard[i + 1 :]], devices)] or differ
    return [hard[i] for i in guilty], [d for i, d in enumerate(hard) if i != guilty[0]]


def _on_slices(case: Case, light: Sequence[Demand], whole: Sequence[Demand], roomy: Sequence[Device]) -> ToolkitError:
    guilty, _ = _to_blame(case, light, whole, roomy)
    demand = guilty[0]
    return does_not_fit(
        f"{demand.name} needs {demand.size} GPUs that work as one, and a process sees one MIG device only",
        resource="mig",
        needed=demand.size,
        available=1,
        services=[one.name for one in guilty],
        key="gpus",
        hint="Turn MIG off on enough GPUs, or set 'tp_size: 1'. See 'coexist host'.",
    )


def _eased(demand: Demand, key: str, most: int) -> Demand:
    return replace(demand, same=most) if key == "same" else replace(demand, linked=most)


def _most_of_group(case: Case, demand: Demand, beside: Sequence[Demand], key: str, devices: Sequence[Device]) -> int:
    """How many devices of a group can have the property, with the other demands as they are."""
    fewer = range(demand.size - 1, 1, -1)
    return next((n for n in fewer if case.fits([*beside, _eased(demand, key, n)], devices)), 1)


def _unlike(case: Case, whole: Sequence[Demand], alike: Sequence[Demand], roomy: Sequence[Device]) -> ToolkitError:
    guilty, beside = _to_blame(case, whole, alike, roomy)
    demand = guilty[0]
    return does_not_fit(
        f"{demand.name} needs {demand.size} GPUs of one model and memory size for a tensor-parallel group",
        resource="gpus",
        needed=demand.size,
        available=_most_of_group(case, demand, beside, "same", roomy),
        services=[one.name for one in guilty],
        key="gpus",
        hint="Lower 'tp_size', or leave it the GPUs of one model. See 'coexist host'.",
    )


def _unlinked(case: Case, alike: Sequence[Demand], linked: Sequence[Demand], roomy: Sequence[Device]) -> ToolkitError:
    guilty, beside = _to_blame(case, alike, linked, roomy)
    demand = guilty[0]
    most = _most_of_group(case, demand, beside, "linked", roomy)
    return does_not_fit(
        f"{demand.name} needs {demand.size} GPUs that NVLink joins pairwise; the largest such group here has {most}",
        resource="nvlink",
        needed=demand.size,
        available=most,
        services=[one.name for one in guilty],
        key="nvlink",
        hint="Lower 'tp_size', or write 'nvlink: preferred'. See 'coexist host'.",
    )


def _out_of_memory(case: Case) -> ToolkitError:
    short_mib, placement, board = _least_shortage(case)
    position = _fullest(case, placement, board)
    device = board.devices[position]
    on = [d for d in case.demands if any(position in group for group in placement.groups[d.name])]
    needed = sum(demand.need_bytes for demand in on)
    usable = needed - short_mib * MIB
    held = [f"{_whom(r.purpose)} holds {format_bytes(r.size_bytes)}" for r in device.held]
    wants = [f"{d.name} needs {format_bytes(d.need_bytes)} with its CUDA context" for d in on]
    missing, size = format_bytes(short_mib * MIB), format_bytes(device.total_bytes or 0)
    return does_not_fit(
        f"{missing} of memory is missing on {device.label} ({size}): {', '.join([*held, *wants])}",
        resource="gpu_memory",
        needed=needed // MIB,
        available=usable // MIB,
        services=[demand.name for demand in on],
        key="gpu_memory",
        hint="Lower a 'gpu_memory', stop the holder, or use more GPUs.",
    )


def _whom(purpose: str) -> str:
    return purpose.removeprefix("held by ")


def _least_shortage(case: Case) -> tuple[int, Placement, Board]:
    """The fewest MiB that, added to every device, let all demands be placed, and where they then are."""
    low, high = 0, 1 + sum(demand.need_bytes for demand in case.demands) // MIB + _overdrawn_mib(case.devices)
    found = case.solve(case.demands, _enlarged(case.devices, high))
    while high - low > 1:
        middle = (low + high) // 2
        answer = case.solve(case.demands, _enlarged(case.devices, middle))
        if answer is None:
            low = middle
        else:
            high, found = middle, answer
    if found is None:
        raise AssertionError("demands that fit without limits fit on devices as large as all of them together")
    return (high, *found)


def _overdrawn_mib(devices: Sequence[Device]) -> int:
    return max((max(0, -(device.usable_bytes or 0)) // MIB for device in devices), default=0)


def _enlarged(devices: Sequence[Device], mib: int) -> list[Device]:
    return [
        replace(device, usable_bytes=None if device.usable_bytes is None else device.usable_bytes + mib * MIB)
        for device in devices
    ]


def _fullest(case: Case, placement: Placement, board: Board) -> int:
    """The device with least left. At the least shortage that is one with nothing left."""
    load = dict.fromkeys(range(len(board.devices)), 0)
    for demand in case.demands:
        for position in (p for group in placement.groups[demand.name] for p in group):
            load[position] += demand.need_bytes
    used = [p for p, size_bytes in load.items() if size_bytes and board.devices[p].usable_bytes is not None]
    return min(used, key=lambda p: ((board.devices[p].usable_bytes or 0) - load[p], p))
