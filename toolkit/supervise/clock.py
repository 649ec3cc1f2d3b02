"""Time as the supervisor sees it."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from datetime import datetime, timezone


class SystemClock:
    """The monotonic clock, and the event loop's sleep."""

    def now(self) -> float:
        """Seconds since an arbitrary start; a change of the date does not touch it."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Returns after ``seconds``."""
        await asyncio.sleep(seconds)


@dataclass(frozen=True)
class Calendar:
    """Turns seconds of a clock into dates; read once, so that a change of the date moves nothing."""

    started_s: float
    started_at: float = field(default_factory=time.time)

    def unix_s(self, at_s: float) -> float:
        """Seconds since 1970."""
        return self.started_at + at_s - self.started_s

    def iso(self, at_s: float) -> str:
        """The date in UTC, to the millisecond: ``2026-01-31T12:00:00.000Z``."""
        date = datetime.fromtimestamp(self.unix_s(at_s), timezone.utc)
        return date.isoformat(timespec="milliseconds").replace("+00:00", "Z")
