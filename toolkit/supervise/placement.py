"""After the start: is everything of an instance where it was planned? A pure judgement of what was seen."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from toolkit.affinity import Placement as Pages
from toolkit.affinity import Report
from toolkit.host.gpu_use import DeviceUse
from toolkit.host.model import Holder
from toolkit.units import format_bytes

_MOST_NAMED = 3


@dataclass(frozen=True)
class Expected:
    """What the plan gave beside CPUs. ``budgets``: bytes by device UUID, without CUDA contexts; None: unknown.

    ``memory_nodes``: NUMA nodes its memory belongs on, and ``bound``: the kernel was told to keep it there.
    ``alone``: nobody else has business on its devices. ``context_bytes``: what one CUDA context takes here.
    """

    memory_nodes: tuple[int, ...] = ()
    bound: bool = False
    node_count: int = 1
    budgets: Mapping[str, int | None] = field(default_factory=dict)
    alone: bool = False
    context_bytes: int = 0


@dataclass(frozen=True)
class Seen:
    """One look at a tree: its processes, their threads and pages, and who uses which device."""

    pids: frozenset[int]
    threads: Report
    pages: Pages
    devices: tuple[DeviceUse, ...] = ()


@dataclass(frozen=True)
class Foreign:
    """A GPU context where none was planned; ``ours``: of this instance, on a device that is not its own."""

    uuid: str
    index: int
    holder: Holder
    ours: bool

    def __str__(self) -> str:
        size = self.holder.used_bytes
        amount = "" if size is None else f", {format_bytes(size)}"
        why = "a device that the plan did not give" if self.ours else "a device that nobody else was given"
        return f"{_named(self.holder)} on GPU {self.index}{amount}: {why}"


@dataclass(frozen=True)
class OverBudget:
    """More memory of a device than budget and contexts; both in bytes."""

    uuid: str
    index: int
    used_bytes: int
    allowed_bytes: int

    def __str__(self) -> str:
        used, allowed = format_bytes(self.used_bytes), format_bytes(self.allowed_bytes)
        return f"{used} of GPU {self.index} in use, {allowed} planned (CUDA contexts included)"


@dataclass(frozen=True)
class Placement:
    """What is on plan and what is not; ``not_measurable``: what could not be told, and why."""

    threads: Report
    pages: Pages
    foreign: tuple[Foreign, ...] = ()
    over_budget: tuple[OverBudget, ...] = ()
    not_measurable: tuple[str, ...] = ()
    drift: Mapping[str, str] = field(default_factory=dict)


def judge(seen: Seen, expected: Expected) -> Placement:
    """What was seen against the plan. ``drift``: a sentence for each thing that is off it, by what it is about."""
    foreign = tuple(_foreign(seen, expected))
    over = tuple(_over_budget(seen, expected))
    untold = [f"pages: {seen.pages.why.removeprefix('not measurable: ')}"] if seen.pages.why else []
    blind = [use.index for use in _planned(seen, expected) if not _mine(use, seen) and _unknown(use)]
    untold += [f"who holds memory of GPU {index} is hidden from this pid namespace" for index in blind]
    drift = dict(_drift(seen, expected, foreign, over))
    return Placement(seen.threads, seen.pages, foreign, over, tuple(untold), drift)


def _planned(seen: Seen, expected: Expected) -> list[DeviceUse]:
    return [use for use in seen.devices if use.uuid in expected.budgets]


def _mine(use: DeviceUse, seen: Seen) -> list[Holder]:
    return [holder for holder in use.holders if holder.pid in seen.pids]


def _unknown(use: DeviceUse) -> list[Holder]:
    return [holder for holder in use.holders if holder.pid is None and holder.name is None]


def _foreign(seen: Seen, expected: Expected) -> Iterator[Foreign]:
    for use in seen.devices:
        if use.uuid not in expected.budgets:
            yield from (Foreign(use.uuid, use.index, holder, ours=True) for holder in _mine(use, seen))
        elif expected.alone:
            yield from (Foreign(use.uuid, use.index, holder, ours=False) for holder in _others(use, seen))


def _others(use: DeviceUse, seen: Seen) -> list[Holder]:
    """Contexts that are not this instance's. Where the driver names none of ours, the unknown one may be ours."""
    named = [holder for holder in use.holders if holder.pid is not None and holder.pid not in seen.pids]
    return [*named, *(_unknown(use) if _mine(use, seen) else [])]


def _over_budget(seen: Seen, expected: Expected) -> Iterator[OverBudget]:
    for use in _planned(seen, expected):
        budget_bytes = expected.budgets[use.uuid]
        mine = _mine(use, seen) or (_unknown(use) if expected.alone else [])
        if budget_bytes is None or not mine:
            continue
        used_bytes = sum(holder.used_bytes or 0 for holder in mine)
        allowed_bytes = budget_bytes + len(mine) * expected.context_bytes
        if used_bytes > allowed_bytes:
            yield OverBudget(use.uuid, use.index, used_bytes, allowed_bytes)


def _drift(
    seen: Seen, expected: Expected, foreign: Sequence[Foreign], over: Sequence[OverBudget]
) -> Iterator[tuple[str, str]]:
    off = seen.threads.drifting
    if off:
        yield "threads", f"{len(off)} of {seen.threads.threads} threads are not held to the plan: {_few(off)}"
    on_plan = seen.pages.on_plan_percent
    if expected.bound and on_plan is not None and on_plan < 100.0:
        yield "pages", f"{on_plan:.1f}% of its memory is on the NUMA nodes it is bound to"
    yield from ((f"foreign {each.uuid} {each.holder.pid}", str(each)) for each in foreign)
    yield from ((f"over budget {each.uuid}", str(each)) for each in over)


def _few(things: Sequence[object]) -> str:
    more = [f"{len(things) - _MOST_NAMED} more"] if len(things) > _MOST_NAMED else []
    return "; ".join([*map(str, things[:_MOST_NAMED]), *more])


def _named(holder: Holder) -> str:
    return "unknown holder" if holder.pid is None else f"{holder.name or 'process'} (pid {holder.pid})"


def news(before: Placement | None, after: Placement) -> tuple[str, ...]:
    """Sentences about what has drifted since; what was known already is not told again."""
    known = before.drift if before else {}
    return tuple(text for about, text in after.drift.items() if about not in known)


def kinds(drift: Iterable[str]) -> dict[str, int]:
    """How many drifts there are of each kind."""
    counts = {"threads": 0, "pages": 0, "foreign": 0, "over budget": 0}
    for about in drift:
        counts[next(kind for kind in counts if about.startswith(kind))] += 1
    return counts
