"""Keeps status.json up to date without making the event loop wait for the disk."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import Any

from toolkit.supervise.state import StateFolder

_PAUSE_S = 0.1  # many changes, one write
RETRY_S = 1.0


class StatusWriter:
    """An asynchronous context: ``note`` asks for a write, leaving writes the last status."""

    def __init__(
        self,
        folder: StateFolder,
        snapshot: Callable[[], Mapping[str, Any]],
        told: Callable[[str, OSError | None], None] = lambda _, __: None,
    ) -> None:
        """``told``: how each write went."""
        self._folder, self._snapshot, self._told = folder, snapshot, told
        self._wanted = asyncio.Event()
        self._turn = asyncio.Lock()  # a write that leaving cuts off goes on in its thread: the last one waits for it

    def note(self) -> None:
        """Something changed."""
        self._wanted.set()

    async def __aenter__(self) -> StatusWriter:
        self._task = asyncio.create_task(self._write_on_change())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        await self._write()

    async def _write_on_change(self) -> None:
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            if await asyncio.shield(self._write()):
                await asyncio.sleep(_PAUSE_S)
            else:
                self._wanted.set()
                await asyncio.sleep(RETRY_S)

    async def _write(self) -> bool:
        """Whether the disk took it; a full one stops no service."""
        error: OSError | None = None
        async with self._turn:
            try:
                await asyncio.to_thread(self._folder.write_status, self._snapshot())
            except OSError as refusal:
                error = refusal
        self._told("status", error)
        return error is None
