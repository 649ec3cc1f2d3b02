"""Who may build, who is using: locks that the kernel drops when their process dies."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from filelock import FileLock, Timeout

from toolkit.errors import ToolkitError
from toolkit.files import disk_errors
from toolkit.processes import lock_holder
from toolkit.store import manifest

_TELL_EVERY_S = 5.0
_USE_TRIES, _USE_PAUSE_S = 200, 0.01
Waiting = Callable[["int | None", float], None]


@contextmanager
def exclusive(path: Path, waiting: Waiting, clock: Callable[[], float] = time.monotonic) -> Iterator[None]:
    """A block that one process at a time is in; ``waiting(pid of the holder, seconds so far)`` is called meanwhile."""
    lock = FileLock(path)
    started_s = clock()
    timeout_s = 0.0
    while True:
        try:
            with disk_errors(path, "cannot take the lock"):
                lock.acquire(timeout=timeout_s)
            break
        except Timeout:
            waiting(lock_holder(path), clock() - started_s)
            timeout_s = _TELL_EVERY_S
    try:
        yield
    finally:
        lock.release()


@contextmanager
def exclusive_now(path: Path) -> Iterator[bool]:
    """A block that knows whether it got the lock; it never waits."""
    lock = FileLock(path)
    try:
        with disk_errors(path, "cannot take the lock"):
            lock.acquire(timeout=0)
    except Timeout:
        yield False
        return
    try:
        yield True
    finally:
        lock.release()


class Use:
    """A hold on an engine folder: until it is closed (or its process dies) nothing removes these files.

    A child that must keep the hold after us inherits ``fileno()`` (``pass_fds``).
    """

    def __init__(self, descriptor: int, path: Path) -> None:
        self._descriptor = descriptor
        self.path = path

    def fileno(self) -> int:
        return self._descriptor

    def close(self) -> None:
        """Ends the hold; a second call does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Use:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def use(folder: Path) -> Use:
    """A hold on the engine that is at this path now.

    Raises: ToolkitError when there is none (any more).
    """
    # Busy: a prune is looking at it, or removing it. And the lock file moves with its folder, so a hold on an engine
    # that was just replaced is taken again on the new one.
    for _ in range(_USE_TRIES):
        if not (folder / manifest.USE_LOCK).exists():
            break
        descriptor = _lock(folder, fcntl.LOCK_SH, os.O_RDONLY)
        if descriptor is not None and _is_file_at(descriptor, folder / manifest.USE_LOCK):
            return Use(descriptor, folder)
        if descriptor is not None:
            os.close(descriptor)
        time.sleep(_USE_PAUSE_S)
    raise ToolkitError(
        "the engine is not there any more", str(folder), "Run 'coexist build' again.", code="engine_missing"
    )


@contextmanager
def unused(folder: Path) -> Iterator[bool]:
    """A block that knows whether nobody uses the engine; while it runs nobody can begin to."""
    if not (folder / manifest.USE_LOCK).exists():
        yield True
        return
    descriptor = _lock(folder, fcntl.LOCK_EX, os.O_RDWR)
    try:
        yield descriptor is not None
    finally:
        if descriptor is not None:
            os.close(descriptor)


def is_unused(folder: Path) -> bool:
    """Whether nobody uses the engine at this moment."""
    with unused(folder) as free:
        return free


def _lock(folder: Path, kind: int, flags: int) -> int | None:
    try:
        descriptor = os.open(folder / manifest.USE_LOCK, flags | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def _is_file_at(descriptor: int, path: Path) -> bool:
    try:
        there = path.stat()
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(descriptor), there)
