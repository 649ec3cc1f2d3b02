"""What each part of a stage took: seconds, and the memory that it added."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

from toolkit.warm.model import Clock, Memory

Measure = Callable[[], Awaitable[Memory]]


@dataclass
class Parts:
    """Filled part by part, one after the other."""

    clock: Clock
    measure: Measure
    seconds: dict[str, float] = field(default_factory=dict)
    host_bytes: dict[str, int] = field(default_factory=dict)
    gpu_bytes: dict[str, int] = field(default_factory=dict)
    _before: Memory | None = None

    @contextlib.asynccontextmanager
    async def part(self, name: str) -> AsyncIterator[None]:
        """A block that is this part; what it did not finish is not told."""
        before = self._before or await self.measure()
        began_s = self.clock.now()
        yield
        self.seconds[name] = self.clock.now() - began_s
        self._before = after = await self.measure()
        _note(self.host_bytes, name, before.host_bytes, after.host_bytes)
        _note(self.gpu_bytes, name, before.gpu_bytes, after.gpu_bytes)


def _note(sizes: dict[str, int], name: str, before: int | None, after: int | None) -> None:
    if before is not None and after is not None:
        sizes[name] = after - before
