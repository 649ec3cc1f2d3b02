"""What stands in for the processes that a build starts, and for a person who interrupts it."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from toolkit.build.reference import Outcome


class Child:
    """Answers in the order given, and remembers how it was asked."""

    def __init__(self, *outcomes: Outcome | OSError) -> None:
        self.outcomes = list(outcomes)
        self.asked: list[tuple[Sequence[str], Mapping[str, str]]] = []

    def __call__(self, argv: Sequence[str], env: Mapping[str, str]) -> Outcome:
        self.asked.append((argv, env))
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, OSError):
            raise outcome
        return outcome


@contextmanager
def interrupted_once(there: Path) -> Iterator[None]:
    """A block that Ctrl-C must end; it is pressed once this file is there."""

    def interrupt() -> None:
        while not there.exists():
            time.sleep(0.02)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    thread = threading.Thread(target=interrupt, daemon=True)  # a block that fails makes no file
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        yield
    thread.join()
