"""Standard error that makes nobody wait: a halted terminal (Ctrl-S) or a pipe without a reader halts no service."""

from __future__ import annotations

import contextlib
import io
import os
import queue
import sys
import threading
import time
from collections.abc import Iterator
from typing import TextIO

KEPT_WRITES = 1000
PATIENCE_S = 1.0


class Aside(io.TextIOBase):
    """A text stream in front of ``stream``; a thread of its own does the writing, past the stream's buffer.

    What exceeds ``KEPT_WRITES`` that nobody took, and what cannot be written, is lost.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._waiting: queue.Queue[bytes] = queue.Queue(KEPT_WRITES)
        self._taken_bytes = 0
        threading.Thread(target=self._hand_on, daemon=True, name="stderr").start()

    def isatty(self) -> bool:
        """Whether a terminal is behind."""
        return self._stream.isatty()

    def fileno(self) -> int:
        """Of the stream behind."""
        return self._stream.fileno()

    def write(self, text: str) -> int:
        """The length of the text, at once."""
        with contextlib.suppress(queue.Full):
            self._waiting.put_nowait(text.encode(self._stream.encoding, self._stream.errors or "backslashreplace"))
        return len(text)

    def settle(self) -> None:
        """Returns when all was taken, or when nothing was for ``PATIENCE_S``."""
        seen_bytes, since_s = self._taken_bytes, time.monotonic()
        while self._waiting.unfinished_tasks and time.monotonic() - since_s < PATIENCE_S:
            if self._taken_bytes != seen_bytes:
                seen_bytes, since_s = self._taken_bytes, time.monotonic()
            time.sleep(0.005)

    def _hand_on(self) -> None:
        while True:
            data = self._waiting.get()
            with contextlib.suppress(OSError):  # nobody is there any more
                while data:
                    written = os.write(self.fileno(), data)
                    self._taken_bytes, data = self._taken_bytes + written, data[written:]
            self._waiting.task_done()


@contextlib.contextmanager
def stderr() -> Iterator[None]:
    """While the block runs, nobody who says something on standard error waits for its reader."""
    sys.stderr.flush()
    aside = Aside(sys.stderr)
    with contextlib.redirect_stderr(aside):
        yield
    aside.settle()
