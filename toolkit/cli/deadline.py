"""A time limit on plain code of the main thread."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def raises_after(timeout_s: float | None, error: Callable[[float], Exception]) -> Iterator[None]:
    """After ``timeout_s`` the block is left with ``error(timeout_s)``, as Ctrl-C would leave it; None: never."""
    if timeout_s is None:
        yield
        return
    limit_s = timeout_s

    def ring(number: int, frame: FrameType | None) -> None:
        raise error(limit_s)

    previous = signal.signal(signal.SIGALRM, ring)
    timer = signal.setitimer(signal.ITIMER_REAL, max(limit_s, 1e-6))  # 0 would switch it off
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, previous)
