"""How one engine folder takes the place of another."""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2  # linux/fcntl.h, linux/fs.h


def exchange(new: Path, old: Path) -> None:
    """Swaps two folders of one file system, atomically where kernel and file system can (``renameat2``)."""
    result, code = _renameat2_exchange(new, old)
    if result == 0:
        return
    if code not in (errno.ENOSYS, errno.EINVAL):
        raise OSError(code, os.strerror(code), str(old))
    aside = new.with_name(new.name + ".old")
    old.rename(aside)
    new.rename(old)
    aside.rename(new)


def _renameat2_exchange(new: Path, old: Path) -> tuple[int, int]:
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "renameat2"):
        return -1, errno.ENOSYS
    result = libc.renameat2(_AT_FDCWD, os.fsencode(new), _AT_FDCWD, os.fsencode(old), _RENAME_EXCHANGE)
    return int(result), ctypes.get_errno()
