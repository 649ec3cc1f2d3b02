"""The decision, pure: ledger and wishes in, new ledger or refusal out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from toolkit.reserve.model import Conflict, GpuClaim, Grant, Owner, Refusal, Request, Resource, State, Totals
from toolkit.units import format_cpu_list

Process = tuple[int, int]  # pid and start time, in clock ticks since boot


@dataclass(frozen=True)
class World:
    """What a decision may know of the moment: this boot, seconds since it began, and who lives."""

    boot_id: str
    now_s: float
    alive: Callable[[Owner], bool]


def decide(
    state: State, wishes: Sequence[Grant], totals: Totals, world: World, replaced: Collection[str] = ()
) -> State | Refusal:
    """The ledger with all wishes granted, or the reason why none is; grants that ended are dropped first.

    ``replaced``: ids of grants that the wishes take the place of. They are no obstacle to these, but stay held, since
    what they were granted for still runs.
    """
    held = swept(state, world)
    current = without(held, replaced)
    for wish in wishes:
        conflicts = tuple(_conflicts(current.grants, wish, totals))
        if conflicts:
            return Refusal(service=wish.service, conflicts=conflicts)
        current = current.model_copy(update={"grants": (*current.grants, wish)})
    leaving = tuple(grant for grant in held.grants if grant.id in replaced)
    return current.model_copy(update={"grants": (*leaving, *current.grants)})


def swept(state: State, world: World) -> State:
    """The ledger without grants of another boot, of dead owners, and of attempts that never reached PRELOAD in time."""
    if state.boot_id != world.boot_id:
        return State(boot_id=world.boot_id)
    kept = tuple(grant for grant in state.grants if _holds(grant, world))
    return state.model_copy(update={"grants": kept})


def _holds(grant: Grant, world: World) -> bool:
    in_time = grant.deadline_s is None or world.now_s < grant.deadline_s
    return in_time and (world.alive(grant.owner) or outlived(grant, world))


def outlived(grant: Grant, world: World) -> bool:
    """True when only the process that uses what was granted still lives."""
    return not world.alive(grant.owner) and grant.kept_by is not None and world.alive(grant.kept_by)


def left_to(state: State, processes: Collection[Process], world: World) -> tuple[str, ...]:
    """Ids of grants whose owner died, and that these processes keep."""
    orphans = ((grant.id, grant.kept_by) for grant in state.grants if outlived(grant, world))
    return tuple(key for key, kept in orphans if kept and (kept.pid, kept.start_time) in processes)


def without(state: State, ids: Iterable[str]) -> State:
    """The ledger without these grants."""
    gone = set(ids)
    return state.model_copy(update={"grants": tuple(grant for grant in state.grants if grant.id not in gone)})


def changed(state: State, ids: Collection[str], **facts: Any) -> State:
    """The ledger with other facts of these grants. ``deadline_s`` None: it has reached PRELOAD, held until released."""
    changed = tuple(grant.model_copy(update=facts) if grant.id in ids else grant for grant in state.grants)
    return state.model_copy(update={"grants": changed})


def _conflicts(grants: Sequence[Grant], wish: Grant, totals: Totals) -> Iterator[Conflict]:
    for claim in wish.request.gpus:
        conflict = _gpu_conflict(grants, claim, wish.owner, totals.gpu_bytes.get(claim.uuid))
        if conflict:
            yield conflict
    yield from _cpu_conflicts(grants, wish.request)
    yield from _numa_conflicts(grants, wish.request, totals)
    yield from _port_conflicts(grants, wish.request)


def _gpu_conflict(grants: Sequence[Grant], claim: GpuClaim, owner: Owner, total_bytes: int | None) -> Conflict | None:
    held = [(grant, gpu) for grant in grants for gpu in grant.request.gpus if gpu.uuid == claim.uuid]
    closed = tuple(grant for grant, gpu in held if not (gpu.share and claim.share))
    if closed:
        return Conflict(resource="gpus", subject=claim.uuid, needed=1, available=0, holders=closed)
    # Unknown needs cannot be added up. Inside one deployment its planner has judged them; between two nobody has.
    unknown = tuple(
        grant for grant, gpu in held if grant.owner != owner and None in (gpu.memory_bytes, claim.memory_bytes)
    )
    if unknown:
        subject = f"memory of unknown size on {claim.uuid}"
        return Conflict(resource="gpus", subject=subject, needed=1, available=0, holders=unknown)
    if claim.memory_bytes is None or total_bytes is None:
        return None
    free_bytes = total_bytes - sum(gpu.memory_bytes or 0 for _, gpu in held)
    return _memory_conflict("gpu_memory", claim.uuid, claim.memory_bytes, free_bytes, [grant for grant, _ in held])


def _memory_conflict(
    resource: Resource, subject: str, needed_bytes: int, free_bytes: int, holders: Sequence[Grant]
) -> Conflict | None:
    if needed_bytes <= free_bytes:
        return None
    return Conflict(
        resource=resource,
        subject=subject,
        needed=needed_bytes,
        available=max(free_bytes, 0),
        holders=tuple(holders),
    )


def _cpu_conflicts(grants: Sequence[Grant], request: Request) -> Iterator[Conflict]:
    rivals = [grant for grant in grants if not (grant.request.cpus_shared and request.cpus_shared)]
    wanted = set(request.cpus)
    holders = tuple(grant for grant in rivals if wanted & set(grant.request.cpus))
    taken = {cpu for grant in holders for cpu in grant.request.cpus} & wanted
    if taken:
        yield Conflict(
            resource="cpus",
            subject=format_cpu_list(taken),
            needed=len(wanted),
            available=len(wanted) - len(taken),
            holders=holders,
        )


def _numa_conflicts(grants: Sequence[Grant], request: Request, totals: Totals) -> Iterator[Conflict]:
    for node, needed_bytes in request.numa_bytes.items():
        total_bytes = totals.numa_bytes.get(node)
        if total_bytes is None:
            continue
        holders = [grant for grant in grants if grant.request.numa_bytes.get(node)]
        free_bytes = total_bytes - sum(grant.request.numa_bytes[node] for grant in holders)
        conflict = _memory_conflict("numa_memory", f"node {node}", needed_bytes, free_bytes, holders)
        if conflict:
            yield conflict


def _port_conflicts(grants: Sequence[Grant], request: Request) -> Iterator[Conflict]:
    for port in request.ports:
        holders = tuple(grant for grant in grants if port in grant.request.ports)
        if holders:
            yield Conflict(resource="port", subject=str(port), needed=1, available=0, holders=holders)
