"""How a build step talks to the process that started it: JSON lines on a pipe (standard library only)."""

from __future__ import annotations

import ctypes
import json
import logging
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from toolkit.errors import ToolkitError
from toolkit.files import full_disk_error, is_full_disk, tells_of_full_disk

log = logging.getLogger(__name__)
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


class Progress:
    """Writes events to a file descriptor; without one, nowhere."""

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor

    def send(self, **event: Any) -> None:
        if self._descriptor is not None:
            os.write(self._descriptor, json.dumps(event).encode() + b"\n")

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """A block whose begin, end and seconds are told."""
        self.send(step=name, state="begin")
        begin_s = time.monotonic()
        yield
        self.send(step=name, state="end", seconds=round(time.monotonic() - begin_s, 3))


def die_with_parent() -> None:
    """From now on this process is killed when the one that started it ends, however that ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def run_step(progress: Progress, work: Callable[[], Mapping[str, Any]]) -> int:
    """The exit status of a build step: 0 with its result told, 1 with an error that a person can cure told.

    Other exceptions pass: their traceback belongs into the build log.
    """
    die_with_parent()
    try:
        result = work()
    except ToolkitError as error:
        progress.send(error=_document(error))
        return error.exit_code
    except Exception as error:
        full = disk_full(error)
        if full is None:
            raise
        log.exception("the disk is full")
        progress.send(error=_document(full))
        return full.exit_code
    progress.send(result=dict(result))
    return 0


def disk_full(error: BaseException) -> ToolkitError | None:
    """What a person is told when the cause of this error is a full disk; None when it is not."""
    cause: BaseException | None = error
    while cause is not None:
        if tells_of_full_disk(str(cause)) or (isinstance(cause, OSError) and is_full_disk(cause)):
            place = getattr(cause, "filename", None)
            return full_disk_error(str(place) if place else None)
        cause = cause.__cause__ or cause.__context__
    return None


def _document(error: ToolkitError) -> dict[str, Any]:
    return {"what": error.what, "where": error.where, "hint": error.hint, "code": error.code, "details": error.details}
