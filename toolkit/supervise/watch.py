"""Looks at a serving instance: does it answer, does it answer rightly, and does it still compile?"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import aiohttp

from toolkit.supervise import health, window
from toolkit.supervise.compile_watch import CompileWatch
from toolkit.supervise.health import Answer, Evidence, Health
from toolkit.supervise.lifecycle import Failure
from toolkit.supervise.logs import LogView
from toolkit.supervise.process import Tree
from toolkit.warm import CanaryResult, Clock, Target, deep
from toolkit.warm.client import Client, RequestFailedError, quick, shorten
from toolkit.warm.compiles import Compile, Seen, since

DEEP_S = 30.0  # from one deep probe to the next: one token each, which no user notices
CANARY_EVERY = 10  # so many deep probes, the canary is asked in place of one
_LIVE_TIMEOUT_S = 5.0
_DEEP_TIMEOUT_S = 30.0
_METRICS_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class Late:
    """``count``: compiles since READY, in the channel that saw most; ``new``: since the last look."""

    count: int
    new: tuple[Compile, ...] = ()


@dataclass
class Watcher:
    """What is remembered between two looks at one attempt."""

    target: Target
    http: aiohttp.ClientSession
    tree: Tree
    log: LogView
    clock: Clock
    compiles: CompileWatch | None = None
    compiles_at_ready: Seen = field(default_factory=Seen)
    _live: Health = field(default_factory=Health)
    _deep: Health = field(default_factory=Health)
    _asked: int = 0
    _at_live: Evidence | None = None
    _at_deep: Evidence | None = None
    _last_compiles: Seen | None = None

    async def late_compiles(self) -> Late | None:
        """Compiles since READY, and what is new since the last look; None when none can be seen."""
        if self.compiles is None:
            return None
        seen = await self.compiles.look()
        before, self._last_compiles = self._last_compiles or self.compiles_at_ready, seen
        if not seen.observed:
            return None
        # One compile is seen in several channels: as a file, as a child, as a line.
        since_ready = since(self.compiles_at_ready, seen)
        return Late(max((each.count for each in since_ready), default=0), since(before, seen))

    async def look(self) -> Failure | None:
        """A failure when the liveness probe says so; a busy instance is not a broken one."""
        probe = self.target.probes.live
        if probe is None:
            return None
        answer = await _asked(lambda: Client(self.target, self.http).send(quick(probe, _LIVE_TIMEOUT_S)))
        advanced = answer.kind not in ("right", "wrong") and self._advanced_since_last_look()
        self._live, failure = health.judge(self._live, answer, advanced, "liveness probes")
        return failure

    def _advanced_since_last_look(self) -> bool:
        before, self._at_live = self._at_live, Evidence(self._sample())
        return before is None or health.advanced(before, self._at_live)

    @property
    def asks_deep(self) -> bool:
        """Whether there is anything to ask beyond the liveness probe."""
        probes = self.target.probes
        return probes.deep is not None or probes.generation is not None or probes.canary is not None

    def deep_pause_s(self, period_s: float, jitter: float) -> float:
        """Seconds to the next deep probe: a period, spread so that instances don't ask together; less in doubt."""
        return min(period_s, _LIVE_TIMEOUT_S) if self._deep.in_doubt else period_s * (0.75 + jitter / 2)

    async def ask(self, period_s: float) -> Failure | None:
        """A failure when deep probes, each ``CANARY_EVERY``-th of them the canary, say so."""
        self.tree.members()  # so that a child that changes its session later is still known as ours
        if self._at_deep is None:
            self._at_deep = await self._evidence()
        self._asked += not self._deep.in_doubt  # the question that went wrong is asked again
        what, answer = await self._answer(min(period_s, _DEEP_TIMEOUT_S))
        before, self._at_deep = self._at_deep, await self._evidence()
        self._deep, failure = health.judge(self._deep, answer, health.advanced(before, self._at_deep), what)
        return failure

    async def _answer(self, timeout_s: float) -> tuple[str, Answer]:
        if self._asked % CANARY_EVERY == 0 and self.target.probes.canary is not None:
            return "canaries", await _asked(lambda: deep.canary(self.target, self.http, timeout_s))
        return "deep probes", await _asked(lambda: deep.one_answer(self.target, self.http, timeout_s))

    async def _evidence(self) -> Evidence:
        page = await deep.metrics(self.target, self.http, _METRICS_TIMEOUT_S)
        return Evidence(self._sample(), health.done_work(page) if page is not None else None)

    def _sample(self) -> window.Sample:
        usage = self.tree.usage()
        written = self.log.written_bytes()
        return window.Sample(self.clock.now(), written, usage.resident_bytes, usage.cpu_s)


async def _asked(question: Callable[[], Awaitable[object]]) -> Answer:
    try:
        told = await question()
    except RequestFailedError as error:
        if error.busy:
            return Answer("busy", error.reason)
        silent = isinstance(error.__cause__, asyncio.TimeoutError)
        return Answer("silent" if silent else "wrong", error.reason)
    if isinstance(told, CanaryResult) and not told.ok:
        return Answer("wrong", f"expected '{shorten(told.expected, {})}', got '{shorten(told.got, {})}'")
    return health.RIGHT
