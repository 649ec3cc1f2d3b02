"""An attempt's turn on its GPUs: while it has it, nobody else on this host starts or stops anything there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field
from typing import Protocol

from toolkit.supervise.service import MemoryDifference, ServiceRun
from toolkit.warm import Clock

_MEMORY_WAIT_S, _MEMORY_POLL_S = 15.0, 0.5  # what an ended process held comes back within seconds

FreeMemory = Callable[[ServiceRun], MemoryDifference | None]


class GpuStarts(Protocol):
    """``reserve.gpu_starts``: a block in which nobody else on this host starts something on these GPUs."""

    def __call__(
        self, uuids: Iterable[str], *, waiting: Callable[[int | None, float], None]
    ) -> AbstractAsyncContextManager[None]: ...


@dataclass
class GpuTurn:
    """Of one attempt; ``note`` takes a sentence for the event log."""

    run: ServiceRun
    starts: GpuStarts
    free_memory: FreeMemory
    clock: Clock
    note: Callable[[str], None]
    held: bool = False
    _block: AsyncExitStack = field(default_factory=AsyncExitStack)
    _told_to_wait: bool = False

    async def take(self) -> None:
        """It is this attempt's turn from now on."""
        await self._block.enter_async_context(self.starts(self.run.gate().devices, waiting=self._waits))
        self.held = True

    async def release(self) -> None:
        """It is somebody else's turn from now on."""
        self.held = False
        await self._block.aclose()

    async def missing_memory(self) -> str | None:
        """What is missing of the memory that was reserved, once it has had time to come back; None: nothing."""
        if not self.run.gate().devices:
            return None
        deadline_s, told = self.clock.now() + _MEMORY_WAIT_S, False
        while found := await asyncio.to_thread(self.free_memory, self.run):
            if not told:
                self.note(f"waits for GPU memory: {found.text}" if found.blocks else found.text)
                told = True
            if not found.blocks or self.clock.now() >= deadline_s:
                return found.text if found.blocks else None
            await self.clock.sleep(_MEMORY_POLL_S)
        return None

    def _waits(self, holder: int | None, _: float) -> None:
        if not self._told_to_wait:
            self._told_to_wait = True
            self.note(f"waits while {f'pid {holder}' if holder else 'somebody'} starts on its GPU")
