"""Addresses of Unix sockets whose path is longer than an address may be."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MAX_ADDRESS_BYTES = 107  # sun_path of include/uapi/linux/un.h, less the NUL that ends it


@contextmanager
def short_path(path: Path) -> Iterator[str]:
    """A name of the socket that fits an address, good while the context lasts."""
    if len(os.fsencode(path)) <= MAX_ADDRESS_BYTES:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
