"""One start at a time per GPU: held from the comparison of free memory with the ledger until SERVING."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from toolkit.files import disk_errors
from toolkit.processes import lock_holder
from toolkit.reserve.runtime_dir import runtime_dir

_POLL_S = 0.2
Waiting = Callable[["int | None", float], None]


class GpuStartLock:
    """The start lock of one GPU or MIG device on this host; it ends with its process at the latest."""

    def __init__(self, uuid: str, folder: Path) -> None:
        self.uuid = uuid
        self.path = folder / f"gpu-{re.sub(r'[^A-Za-z0-9-]', '_', uuid)}.lock"
        # Taken in one task and perhaps released in another thread of the supervisor.
        self._lock = FileLock(self.path, mode=0o600, thread_local=False)

    def try_acquire(self) -> bool:
        """Whether the lock is ours now; never waits."""
        try:
            with disk_errors(self.path, "cannot take the start lock of a GPU"):
                self._lock.acquire(timeout=0)
        except Timeout:
            return False
        return True

    async def acquire(self, waiting: Waiting | None = None, poll_s: float = _POLL_S) -> None:
        """Returns when the lock is ours; ``waiting(pid of the holder, seconds so far)`` is called at every poll."""
        started_s = time.monotonic()
        while not self.try_acquire():
            if waiting:
                waiting(self.holder(), time.monotonic() - started_s)
            await asyncio.sleep(poll_s)

    def holder(self) -> int | None:
        """The pid that holds the lock; None: nobody, or not known here."""
        return lock_holder(self.path)

    def release(self) -> None:
        """The lock is free; a second call does nothing."""
        self._lock.release(force=True)


def gpu_start_lock(uuid: str, folder: Path | None = None) -> GpuStartLock:
    """The start lock of a GPU, in this host's runtime folder unless another is given."""
    return GpuStartLock(uuid, folder or runtime_dir())


@contextmanager
def alone_on_gpu(uuid: str, folder: Path | None = None) -> Iterator[bool]:
    """A block in which nobody else starts something on the GPU; False, without waiting: somebody does just now."""
    lock = gpu_start_lock(uuid, folder)
    ours = lock.try_acquire()
    try:
        yield ours
    finally:
        if ours:
            lock.release()


@asynccontextmanager
async def gpu_starts(
    uuids: Iterable[str], folder: Path | None = None, waiting: Waiting | None = None, poll_s: float = _POLL_S
) -> AsyncIterator[None]:
    """A block in which we alone start something on these GPUs; taken in one order, so that two cannot deadlock."""
    async with AsyncExitStack() as stack:
        for uuid in sorted(set(uuids)):
            lock = gpu_start_lock(uuid, folder)
            await lock.acquire(waiting, poll_s)
            stack.callback(lock.release)
        yield
