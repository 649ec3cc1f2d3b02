"""Temporary folders that outlive no process for long: what a killed one left, the next one removes."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import weakref
from pathlib import Path

_LOCK = ".lock"


class Scratch:
    """A new folder at ``path``, held until ``cleanup`` or the end of the process, however that comes."""

    def __init__(self, prefix: str) -> None:
        _sweep(prefix)
        self.path = Path(tempfile.mkdtemp(prefix=prefix))
        new = self.path / ".new"
        lock = os.open(new, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        new.rename(self.path / _LOCK)  # nobody meets it unlocked
        self.cleanup = weakref.finalize(self, _remove, self.path, lock)


def _remove(folder: Path, lock: int) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    os.close(lock)


def _sweep(prefix: str) -> None:
    """Removes our own folders whose process is gone: the kernel let go of its lock."""
    for lock_file in Path(tempfile.gettempdir()).glob(f"{prefix}*/{_LOCK}"):
        with contextlib.suppress(OSError):  # another user's, held, or just removed by somebody else
            if lock_file.parent.lstat().st_uid != os.geteuid():
                continue
            lock = os.open(lock_file, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(lock_file.parent, ignore_errors=True)
            finally:
                os.close(lock)
