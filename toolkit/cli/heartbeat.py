"""Signs of life where no terminal shows any: what a command is at, and for how long, every half minute."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator

from toolkit.cli import output
from toolkit.supervise.starting import Step
from toolkit.units import format_duration

EVERY_S = 30.0
Say = Callable[[str], None]


class Doing:
    """What a command is at, and since when."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._begun: tuple[str, float] | None = None

    def at(self, step: Step) -> None:
        """This step begins."""
        self.begin(step.text)

    def begin(self, text: str) -> None:
        """This begins, in words."""
        self._begun = text, self._clock()

    def text(self) -> str | None:
        """What it is at and for how long; None before the first."""
        if self._begun is None:
            return None
        text, since_s = self._begun
        return f"{text} ({format_duration(self._clock() - since_s)} so far)"


@contextlib.contextmanager
def beating(doing: Callable[[], str | None], say: Say = output.say) -> Iterator[None]:
    """While the block runs, what is done is said now and then; nothing on a terminal, or where nothing is done."""
    if sys.stderr.isatty():
        yield
        return
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(EVERY_S):
            _say(doing, say)

    threading.Thread(target=beat, daemon=True, name="heartbeat").start()
    try:
        yield
    finally:
        ended.set()


@contextlib.asynccontextmanager
async def tended(doing: Callable[[], str | None], say: Say) -> AsyncIterator[None]:
    """As ``beating``, on the event loop, for what belongs to it."""
    if sys.stderr.isatty():
        yield
        return

    async def beat() -> None:
        while True:
            await asyncio.sleep(EVERY_S)
            _say(doing, say)

    task = asyncio.create_task(beat())
    try:
        yield
    finally:
        task.cancel()


def _say(doing: Callable[[], str | None], say: Say) -> None:
    if text := doing():
        say(f"still {text}")
