from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

from toolkit.supervise.state import StateFolder
from toolkit.supervise.status_writer import StatusWriter


class SlowFolder(StateFolder):
    """Its first write takes until ``go`` is set."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.begun, self.go, self.written = threading.Event(), threading.Event(), list[Any]()

    def write_status(self, document: Any) -> None:
        if not self.begun.is_set():
            self.begun.set()
            assert self.go.wait(30.0)
        self.written.append(document["state"])


async def test_the_last_status_is_the_last_that_is_written(tmp_path: Path) -> None:
    folder, state = SlowFolder(tmp_path), ["DRAINING"]
    async with StatusWriter(folder, lambda: {"state": state[0]}) as writer:
        writer.note()
        await asyncio.to_thread(folder.begun.wait, 30.0)
        state[0] = "STOPPED"
        asyncio.get_running_loop().call_later(0.05, folder.go.set)
    assert folder.written == ["DRAINING", "STOPPED"]
