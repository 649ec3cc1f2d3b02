"""Ports that nothing listens on and no other test process is given, whoever runs these tests at the same time.

A process takes a block of ports by listening on its first one, below those that the system itself hands out.
"""

from __future__ import annotations

import itertools
import os
import socket
from collections.abc import Iterator

FIRST, LAST, BLOCK = 12_000, 32_000, 400


def free_ports(count: int) -> list[int]:
    """Different ones, none of which this process has been given for as long as possible."""
    return list(itertools.islice(_ports.of_this_process(), count))


def free_port() -> int:
    return free_ports(1)[0]


class _Ports:
    """A block is this process's while ``guard`` listens; a child that was forked takes another."""

    def __init__(self) -> None:
        self.owner = 0
        self.guard: socket.socket | None = None
        self.ports: Iterator[int] = iter(())

    def of_this_process(self) -> Iterator[int]:
        if self.owner != os.getpid():
            self.owner, self.guard = os.getpid(), _a_guard()
            first = self.guard.getsockname()[1] + 1
            self.ports = filter(_is_free, itertools.cycle(range(first, first + BLOCK - 1)))
        return self.ports


_ports = _Ports()


def _a_guard() -> socket.socket:
    found = (_listener(port) for port in range(FIRST, LAST, BLOCK))
    return next(guard for guard in found if guard is not None)


def _is_free(port: int) -> bool:
    if (listener := _listener(port)) is not None:
        listener.close()
    return listener is not None


def _listener(port: int) -> socket.socket | None:
    try:
        return socket.create_server(("", port))
    except OSError:
        return None
