"""The diagnosis of a log that is still being written."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from toolkit.diagnose.classify import classify
from toolkit.diagnose.model import Context, Diagnosis, Ending

POLL_S = 1.0
CHUNK_BYTES = 1 << 18


def read_pieces(path: Path) -> Iterator[bytes]:
    """The file in pieces. Raises OSError."""
    with path.open("rb") as file:
        while piece := file.read(CHUNK_BYTES):
            yield piece


def follow(
    path: Path,
    context: Context | None = None,
    goes_on: Callable[[], bool] = lambda: True,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Diagnosis]:
    """The diagnosis now, and each time that it changes as the log grows, until ``goes_on`` says no.

    A growing log is read anew, with pauses of at least three times as long as the reading took. Raises OSError.
    """
    told: Diagnosis | None = None
    size = -1
    while True:
        last_look = not goes_on()
        if (now := path.stat().st_size) != size:
            began_s = time.monotonic()
            size, found = now, classify(read_pieces(path), Ending(), context)
            pause_s = max(POLL_S, 3 * (time.monotonic() - began_s))
            if found != told:
                told = found
                yield found
        else:
            pause_s = POLL_S
        if last_look:
            return
        sleep(pause_s)
