"""Keeps status.json up to date without making the event loop wait for the disk."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import Any

from toolkit.supervise.state import StateFolder

_PAUSE_S = 0.1  # many changes, one write


class StatusWriter:
    """An asynchronous context: ``note`` asks for a write, leaving writes the last status."""

    def __init__(self, folder: StateFolder, snapshot: Callable[[], Mapping[str, Any]]) -> None:
        self._folder, self._snapshot = folder, snapshot
        self._wanted = asyncio.Event()
        self.write_errors = 0

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
            await asyncio.shield(self._write())
            await asyncio.sleep(_PAUSE_S)

    async def _write(self) -> None:
        try:
            await asyncio.to_thread(self._folder.write_status, self._snapshot())
        except OSError:  # a full disk stops no service; the next change tries again
            self.write_errors += 1
