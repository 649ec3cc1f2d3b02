"""Where a built-in server stands: its stage, the timed parts of its start, and the requests in flight."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Iterator
from typing import Any, Literal

from toolkit.serve.footprint import growth, held

Stage = Literal["preload", "loaded", "serving", "draining"]
PARTS = ("context", "weights", "kv_cache", "tokenizer")

log = logging.getLogger("coexist.serve")


class Status:
    """Stage and parts are written by the loading thread or the event loop; ``in_flight`` by the event loop alone."""

    def __init__(self) -> None:
        self._held = held()
        self._started_s = time.monotonic()
        self._lock = threading.Lock()
        self._idle = asyncio.Event()
        self._idle.set()
        self._stage: Stage = "preload"
        self.parts: dict[str, float | None] = dict.fromkeys(PARTS)
        self.memory_bytes: dict[str, dict[str, int]] = {}
        self.bytes_read = 0
        self.in_flight = 0

    @property
    def stage(self) -> Stage:
        """The stage now: preload, loaded, serving or draining."""
        return self._stage

    def move(self, source: Stage, target: Stage) -> bool:
        """True when the server stood at ``source`` and stands at ``target`` now; a late move changes nothing."""
        with self._lock:
            if self._stage != source:
                return False
            self._stage = target
        log.info("stage %s -> %s after %.3f s", source, target, time.monotonic() - self._started_s)
        return True

    def drain(self) -> None:
        """From any stage the server is draining afterwards."""
        for source in ("preload", "loaded", "serving"):
            self.move(source, "draining")

    def part(self, name: str, seconds: float) -> None:
        """Adds to the time of a part of the start, and what memory grew by since the part before."""
        self.parts[name] = (self.parts.get(name) or 0.0) + seconds
        before, self._held = self._held, held()
        known = self.memory_bytes.setdefault(name, {})
        for place, size in growth(before, self._held).items():
            known[place] = known.get(place, 0) + size

    @contextlib.contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """A context whose time is added to a part."""
        start_s = time.monotonic()
        try:
            yield
        finally:
            self.part(name, time.monotonic() - start_s)

    def read(self, count_bytes: int) -> None:
        """Counts weights that were read."""
        self.bytes_read += count_bytes

    @contextlib.contextmanager
    def request(self) -> Iterator[None]:
        """A context that counts one request as in flight."""
        self.in_flight += 1
        self._idle.clear()
        try:
            yield
        finally:
            self.in_flight -= 1
            if self.in_flight == 0:
                self._idle.set()

    async def idle(self) -> None:
        """Returns once no request is in flight."""
        await self._idle.wait()

    def document(self, compile_events: int, attention: str | None) -> dict[str, Any]:
        """The answer of ``GET /v1/stage``."""
        parts = {name: None if s is None else round(s, 4) for name, s in self.parts.items()}
        return {
            "stage": self.stage,
            "parts": parts,
            "memory_bytes": {name: dict(sizes) for name, sizes in list(self.memory_bytes.items())},
            "bytes_read": self.bytes_read,
            "compile_events": compile_events,
            "attention": attention,
            "in_flight": self.in_flight,
        }
