"""Looks at a serving instance: does it answer, and does it still compile?"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

import aiohttp

from toolkit.supervise import window
from toolkit.supervise.lifecycle import Failure
from toolkit.supervise.process import Tree
from toolkit.warm import Target
from toolkit.warm.client import Client, RequestFailedError, quick
from toolkit.warm.preload import compile_events

FAILURES_TO_END = 3
_TIMEOUT_S = 5.0


@dataclass
class Watcher:
    """What is remembered between two looks at one attempt."""

    target: Target
    http: aiohttp.ClientSession
    tree: Tree
    compiles_at_ready: int | None = None
    failures: int = 0
    before: window.Sample = field(default_factory=lambda: window.Sample(time.monotonic()))

    async def count_compiles(self) -> None:
        """Remembers how many compiles there were before READY."""
        self.compiles_at_ready = await self._compiles()

    async def late_compiles(self) -> int | None:
        """Compiles since READY; None when that cannot be seen."""
        if self.compiles_at_ready is None:
            return None
        now = await self._compiles()
        return max(0, now - self.compiles_at_ready) if now is not None else None

    async def _compiles(self) -> int | None:
        try:
            return await compile_events(Client(self.target, self.http))
        except RequestFailedError:
            return None

    async def look(self) -> Failure | None:
        """A failure when the liveness probe went wrong several times in a row; a busy instance is not a broken one."""
        self.tree.members()  # so that a child that changes its session later is still known as ours
        probe = self.target.probes.live
        if probe is None:
            return None
        try:
            await Client(self.target, self.http).send(quick(probe, _TIMEOUT_S))
        except RequestFailedError as error:
            return self._count(error)
        self.failures = 0
        return None

    def _count(self, error: RequestFailedError) -> Failure | None:
        busy = isinstance(error.__cause__, asyncio.TimeoutError) and self._works()
        self.failures += not busy
        if self.failures < FAILURES_TO_END:
            return None
        return Failure(f"{FAILURES_TO_END} liveness probes in a row failed: {error.reason}", "retry", "not_live")

    def _works(self) -> bool:
        usage = self.tree.usage()
        after = window.Sample(time.monotonic(), 0, usage.resident_bytes, usage.cpu_s)
        before, self.before = self.before, after
        return window.progressed(before, after)
