"""A deployment's part of the host-wide ledger, from the grant of everything to the release of everything."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress

from toolkit.assemble.grants import processes_of
from toolkit.errors import ToolkitError
from toolkit.host import gpu_use as devices
from toolkit.host.gpu_use import DeviceUse
from toolkit.processes import Identity
from toolkit.reserve import Grant, Ledger, Owner, Request, Totals
from toolkit.reserve.free_memory import Neighbour, compare
from toolkit.reserve.ledger import DEFAULT_WINDOW_S
from toolkit.supervise.service import MemoryDifference, ServiceRun
from toolkit.supervise.supervisor import Supervisor

RENEW_S = DEFAULT_WINDOW_S / 3
GpuUse = Callable[[], tuple[DeviceUse, ...]]


class Reservation:
    """All services' grants. A service that waits keeps its grant, one that came to rest gives it back.

    All but ``note`` take file locks and may wait: they are for threads.
    """

    def __init__(
        self,
        ledger: Ledger,
        owner: Owner,
        requests: Mapping[str, Request],
        totals: Totals,
        *,
        gpu_use: GpuUse = devices.read,
        adopted: Mapping[str, Identity] | None = None,
    ) -> None:
        """Everything is granted; what ``adopted`` processes kept of a dead owner is ours from now on, before all else.

        Raises: ToolkitError naming what somebody else holds; then nothing more is granted.
        """
        self._ledger, self._owner, self._totals, self._gpu_use = ledger, owner, totals, gpu_use
        self._requests = dict(requests)
        self._lock = threading.Lock()
        self._waiting: frozenset[str] = frozenset()
        self._resting: frozenset[str] = frozenset()
        processes = {(each.pid, each.start_ticks) for each in (adopted or {}).values()}
        self._held: dict[str, Grant] = ledger.take_over(owner, processes) if processes else {}
        self._leaving: dict[str, list[Grant]] = {}
        self.change({name: wanted for name, wanted in requests.items() if not self._has(name, wanted)}, totals)

    def _has(self, name: str, wanted: Request) -> bool:
        return name in self._held and self._held[name].request == wanted

    def change(self, requests: Mapping[str, Request], totals: Totals) -> None:
        """These services need this from their next attempt on; until it begins they hold what they had, too.

        Raises: ToolkitError naming what somebody else holds; then nothing is changed.
        """
        with self._lock:
            old = {name: self._held[name] for name in requests if name in self._held}
            granted = self._ledger.grant_all(self._owner, requests, totals, replaced=tuple(old.values()))
            for name, grant in old.items():
                self._leaving.setdefault(name, []).append(grant)
            self._requests.update(requests)
            self._held.update(granted)
            self._totals = totals

    def note(self, waiting: Iterable[str], resting: Iterable[str]) -> None:
        """Which services wait for their turn, and which have come to rest; for the event loop."""
        self._waiting, self._resting = frozenset(waiting), frozenset(resting)

    def hold(self, run: ServiceRun) -> None:
        """The service starts: what it was granted is held from now on, and granted again where it was given back.

        It stays held between attempts, so that nobody comes in between.

        Raises: ToolkitError when somebody else has it by now.
        """
        with self._lock:
            for grant in self._leaving.pop(run.name, ()):
                self._ledger.release(grant)
            self._held[run.name] = self._kept(run.name) or self._again(run.name)

    def keep(self, run: ServiceRun, process: Identity) -> None:
        """What the service was granted is held while this process lives, whatever becomes of us."""
        us = self._owner
        kept_by = Owner(
            pid=process.pid, start_time=process.start_ticks, deployment=us.deployment, pid_namespace=us.pid_namespace
        )
        with self._lock, suppress(ToolkitError):  # it was given back meanwhile
            if run.name in self._held:
                self._held[run.name] = self._ledger.keep(self._held[run.name], kept_by)

    def _kept(self, name: str) -> Grant | None:
        grant = self._held.get(name)
        return self._unless_lost(self._ledger.mark_preloaded, grant) if grant else None

    def _again(self, name: str) -> Grant:
        grant = self._ledger.grant(self._owner, self._requests[name], self._totals, name)
        return self._ledger.mark_preloaded(grant)

    def _unless_lost(self, change: Callable[[Grant], Grant], grant: Grant) -> Grant | None:
        try:
            return change(grant)
        except ToolkitError as error:
            if error.code != "reservation_lost":
                raise
            return None

    def give_back(self) -> None:
        """What services at rest held is free for others."""
        with self._lock:
            unwanted = self._held.keys() - self._requests.keys()
            for name in (self._resting & self._held.keys()) | unwanted:
                for grant in (self._held.pop(name), *self._leaving.pop(name, ())):
                    self._ledger.release(grant)

    def renew(self, window_s: float = DEFAULT_WINDOW_S) -> None:
        """Gives those who wait for their turn ``window_s`` more."""
        with self._lock:
            for name in self._waiting & self._held.keys():
                self._renew(name, self._held[name], window_s)

    def _renew(self, name: str, grant: Grant, window_s: float) -> None:
        renewed = self._unless_lost(lambda held: self._ledger.extend(held, window_s), grant)
        if renewed is None:
            del self._held[name]  # it is granted again, if it can be, when its turn comes
        else:
            self._held[name] = renewed

    def free_memory(self, run: ServiceRun) -> MemoryDifference | None:
        """How free GPU memory differs from what the ledger says, and who holds it; None: it doesn't."""
        uses = {use.uuid: use for use in self._gpu_use()}
        grants = [grant for grant in self._ledger.grants() if not self._is_of(grant, run.name)]
        totals = self._totals.gpu_bytes
        compared = [
            compare(claim.memory_bytes, uses[claim.uuid], _neighbours(claim.uuid, grants), totals.get(claim.uuid))
            for claim in self._requests[run.name].gpus
            if claim.uuid in uses
        ]
        found = [each for each in compared if each]
        text = "; ".join(str(each) for each in found)
        return MemoryDifference(text, any(each.blocks for each in found)) if found else None

    def _is_of(self, grant: Grant, service: str) -> bool:
        return grant.owner == self._owner and grant.service == service

    def release(self) -> None:
        """Nothing is held any more."""
        with self._lock:
            self._held.clear()
            self._leaving.clear()
            self._ledger.release_all(self._owner)


@asynccontextmanager
async def tended(held: Reservation) -> AsyncIterator[Callable[[Supervisor], None]]:
    """Keeps a reservation in step with its deployment: the function is to be called after every change."""
    changed = asyncio.Event()

    def noted(supervisor: Supervisor) -> None:
        held.note(supervisor.waiting(), supervisor.resting())
        changed.set()

    async def change() -> None:
        await changed.wait()
        changed.clear()

    work = [_repeated(change, held.give_back), _repeated(lambda: asyncio.sleep(RENEW_S), held.renew)]
    tasks = [asyncio.create_task(each) for each in work]
    try:
        yield noted
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _repeated(pause: Callable[[], Awaitable[None]], work: Callable[[], None]) -> None:
    while True:
        await pause()
        with suppress(ToolkitError):  # a ledger that cannot be used now can be at the next turn
            await asyncio.to_thread(work)


def _neighbours(uuid: str, grants: Sequence[Grant]) -> list[Neighbour]:
    """The other users of a device, a deployment each."""
    owners = dict.fromkeys(grant.owner for grant in grants)
    return [_neighbour(uuid, [grant for grant in grants if grant.owner == owner]) for owner in owners]


def _neighbour(uuid: str, grants: Sequence[Grant]) -> Neighbour:
    here = [(grant, claim) for grant in grants for claim in grant.request.gpus if claim.uuid == uuid]
    return Neighbour(
        granted_bytes=sum(claim.memory_bytes or 0 for _, claim in here),
        pids=processes_of(*grants),
        started=any(grant.deadline_s is None for grant, _ in here),
    )
