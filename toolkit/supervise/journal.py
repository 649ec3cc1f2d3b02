"""What happened, told to the event log on disk and to everybody who listens."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Iterator
from typing import Any

from toolkit.supervise.clock import Calendar
from toolkit.supervise.state import StateFolder
from toolkit.warm.model import Clock

KEPT_EVENTS = 1000
QUEUED_EVENTS = 1000


class Journal:
    """Numbers events, keeps the last ones, writes and publishes all. A disk that refuses them stops nothing."""

    def __init__(self, folder: StateFolder, clock: Clock, calendar: Calendar) -> None:
        self._folder, self._clock, self._calendar = folder, clock, calendar
        self._listeners: set[asyncio.Queue[dict[str, Any]]] = set()
        self.recent: deque[dict[str, Any]] = deque(maxlen=KEPT_EVENTS)
        self._unwritten: deque[dict[str, Any]] = deque(maxlen=KEPT_EVENTS)
        self._refused: set[str] = set()
        self._number = 0

    def tell(self, kind: str, service: str | None = None, attempt: int | None = None, **facts: Any) -> None:
        """Adds one event. ``facts`` are JSON."""
        self._add(kind, service, attempt, **facts)
        self.flush()

    def _add(self, kind: str, service: str | None, attempt: int | None, **facts: Any) -> None:
        self._number += 1
        at = self._calendar.iso(self._clock.now())
        event = {"id": self._number, "at": at, "kind": kind, "service": service, "attempt": attempt, **facts}
        self.recent.append(event)
        self._unwritten.append(event)
        for listener in tuple(self._listeners):
            self._hand(listener, event)

    def flush(self) -> None:
        """Writes what the disk did not take before, oldest first."""
        error: OSError | None = None
        try:
            while self._unwritten:
                self._folder.append_event(self._unwritten[0])
                self._unwritten.popleft()
        except OSError as refusal:
            error = refusal
        self.disk("events", error)

    def disk(self, what: str, error: OSError | None) -> None:
        """Notes that ``what`` could be written to the state folder, or not; told when it begins and when it is over."""
        failed = bool(self._refused)
        (self._refused.discard if error is None else self._refused.add)(what)
        if error is not None and not failed:
            why = error.strerror or str(error)
            self._add("log", None, None, text=f"the state folder cannot be written ({why}); services are not touched")
        elif failed and not self._refused:
            self._add("log", None, None, text="the state folder can be written again")
            self.flush()

    def _hand(self, listener: asyncio.Queue[dict[str, Any]], event: dict[str, Any]) -> None:
        try:
            listener.put_nowait(event)
        except asyncio.QueueFull:  # it does not read: it finds the rest in the file
            self._listeners.discard(listener)

    @contextlib.contextmanager
    def listen(self) -> Iterator[asyncio.Queue[dict[str, Any]]]:
        """A queue of the events from now on; a listener that falls far behind gets no more."""
        queue: asyncio.Queue[dict[str, Any]] = asyncio.Queue(QUEUED_EVENTS)
        self._listeners.add(queue)
        try:
            yield queue
        finally:
            self._listeners.discard(queue)
