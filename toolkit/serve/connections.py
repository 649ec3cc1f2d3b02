"""Connections of clients that are too slow or say nothing, and what is logged of those that do not speak HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import time
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Generic, TypeVar

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

# From opening, or from the last answer, to the whole head of the next request; as nginx has it for both.
IDLE_S = 75.0
SWEEP_S = 5.0
DESCRIPTORS = 65536

Connection = TypeVar("Connection", bound=Hashable)


class Connections(Generic[Connection]):
    """Knows since when each connection has had no request under way. For the event loop."""

    def __init__(self, idle_s: float = IDLE_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._idle_s = idle_s
        self._clock = clock
        self._busy: set[Connection] = set()
        self._since_s: dict[Connection, float] = {}

    @contextlib.contextmanager
    def busy(self, connection: Connection) -> Iterator[None]:
        """A context in which this connection has a request under way."""
        self._busy.add(connection)
        try:
            yield
        finally:
            self._busy.discard(connection)

    def overdue(self, opened: Iterable[Connection]) -> list[Connection]:
        """Those of the open connections that have been idle for too long, as seen from call to call."""
        now_s = self._clock()
        idle = [one for one in opened if one not in self._busy]
        self._since_s = {one: self._since_s.get(one, now_s) for one in idle}
        return [one for one in idle if now_s - self._since_s[one] >= self._idle_s]


def sweep(connections: Connections[web.RequestHandler], runner: web.AppRunner) -> None:
    """Overdue connections of a server that was set up are closed."""
    opened = runner.server.connections if runner.server is not None else ()
    for handler in connections.overdue(opened):
        handler.force_close()


async def keep_sweeping(connections: Connections[web.RequestHandler], runner: web.AppRunner) -> None:
    """Sweeps now and then, until cancelled."""
    while True:
        await asyncio.sleep(SWEEP_S)
        sweep(connections, runner)


def raise_descriptor_limit(wanted: int = DESCRIPTORS) -> int:
    """The number of descriptors that this process may have open from now on: more clients than the usual 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        return most
    return soft


class NoStrangers(logging.Filter):
    """Leaves out what does not speak HTTP: a traceback for each would bury the rest of the log."""

    def filter(self, record: logging.LogRecord) -> bool:
        """False for a request that could not be parsed."""
        return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))
