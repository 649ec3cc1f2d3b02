"""Wishes for CPUs against what is allowed: lists named exactly, the cgroup's quota, and what is missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from toolkit.errors import ToolkitError
from toolkit.host.model import Host
from toolkit.plan.cores import CorePool, CoreWish, Reach, pool, quota_cpus, threads
from toolkit.plan.refusal import count, does_not_fit, listed
from toolkit.units import format_cpu_list


def pool_for(
    wishes: Sequence[CoreWish], host: Host, near: Sequence[frozenset[int]], held: Mapping[int, str]
) -> CorePool:
    """The cores that no service named and no other deployment holds."""
    return pool(host, near, _taken(wishes, held))


def threads_for(
    wishes: Sequence[CoreWish], host: Host, near: Sequence[frozenset[int]], held: Mapping[int, str]
) -> CorePool:
    """The CPUs that no service named and no other deployment holds, also those of cores that are in use in part."""
    return threads(host, near, _taken(wishes, held))


def _taken(wishes: Sequence[CoreWish], held: Mapping[int, str]) -> list[int]:
    return [*(cpu for wish in wishes for cpu in wish.exact or ()), *held]


def quota_left(wishes: Sequence[CoreWish], host: Host) -> int | None:
    """CPUs of the quota that services with exact lists leave; None: there is no quota.

    Raises: ToolkitError when wishes for a number of CPUs are more than the quota.
    """
    quota = quota_cpus(host)
    if quota is None:
        return None
    wanted = sum(wish.cpus or len(wish.exact or ()) for wish in wishes)
    if wanted > quota:
        what = f"{wanted} CPUs are asked for, and the cgroup's quota is {host.limits.cpu_quota:g} CPUs"
        raise _refusal(what, wishes, wanted, quota)
    return quota - sum(len(wish.exact or ()) for wish in wishes)


def refuse_bad_lists(wishes: Sequence[CoreWish], host: Host, held: Mapping[int, str]) -> None:
    """Raises ToolkitError when a list names a CPU that is not allowed, held elsewhere, or named by another service."""
    owner: dict[int, str] = {}
    allowed = set(host.cpus_allowed)
    for wish in wishes:
        exact = wish.exact or ()
        _refuse_if(wish, [cpu for cpu in exact if cpu not in allowed], "not allowed here")
        for other in sorted({held[cpu] for cpu in exact if cpu in held}):
            _refuse_if(wish, [cpu for cpu in exact if held.get(cpu) == other], f"held by {other}")
        for other in dict.fromkeys(owner[cpu] for cpu in exact if cpu in owner):
            _refuse_if(wish, [cpu for cpu in exact if owner.get(cpu) == other], f"also named by {other}", other)
        owner |= dict.fromkeys(exact, wish.name)


def _refuse_if(wish: CoreWish, bad: Sequence[int], why: str, *others: str) -> None:
    if bad:
        wanted = len(wish.exact or ())
        raise does_not_fit(
            f"{count(len(bad), 'CPU')} ({format_cpu_list(bad)}) {'is' if len(bad) == 1 else 'are'} {why}",
            resource="cpus",
            needed=wanted,
            available=wanted - len(bad),
            services=[wish.name, *others],
            key="cpus",
            hint="Name others, or write a number. See 'coexist host'.",
        )


def too_few(wishes: Sequence[CoreWish], threads: CorePool, host: Host, held: Mapping[int, str]) -> ToolkitError:
    """The refusal when the free CPUs do not suffice."""
    free = threads.core_count
    wanted = sum(wish.cpus or 0 for wish in wishes) + any(wish.is_auto for wish in wishes)
    what = f"{wanted} CPUs are needed, and {free} of {len(host.cpus_allowed)} allowed ones are free{_holders(held)}"
    return _refusal(what, wishes, wanted, free)


def _holders(held: Mapping[int, str]) -> str:
    """Who holds which CPUs, as the end of a sentence."""
    owners = dict.fromkeys(held.values())
    lists = (f"{o} holds {format_cpu_list(cpu for cpu in held if held[cpu] == o)}" for o in owners)
    return "".join(f"; {each}" for each in lists)


def _refusal(what: str, wishes: Sequence[CoreWish], needed: int, available: int) -> ToolkitError:
    names = [wish.name for wish in wishes]
    return does_not_fit(
        f"{what} ({listed(names)})",
        resource="cpus",
        needed=needed,
        available=available,
        services=names,
        key="cpus",
        hint="Ask for fewer, or for 'auto'.",
    )


def remote_cpus(exact: Sequence[int], reach: Reach, near: Sequence[frozenset[int]]) -> int:
    """How many CPUs of a list are not near the devices."""
    if reach.anywhere:
        return 0
    local = frozenset().union(*(near[locality] for locality in reach.localities))
    return len(set(exact) - local)
