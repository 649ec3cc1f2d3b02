"""How long a start that stands still, works, or moves on is looked at: by a clock that only the looks move."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.supervise.conftest import tiny_probes
from toolkit.supervise.logs import LogView
from toolkit.supervise.lookout import Lookout
from toolkit.supervise.process import Usage
from toolkit.supervise.window import BUSY_S, QUIET_S, Stall, opened
from toolkit.warm import Progress, Target

MIB = 1024**2
LENGTH_S = 3600.0


@dataclass
class Clock:
    """``then`` is what happens at each look."""

    then: Callable[[float], object] = lambda _: None
    now_s: float = 1000.0

    def now(self) -> float:
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        assert seconds >= 0
        self.now_s += seconds
        self.then(self.now_s - 1000.0)


@dataclass
class Tree:
    used: Usage = field(default_factory=lambda: Usage(100 * MIB, 1.0, 10 * MIB))

    def usage(self) -> Usage:
        return self.used


@dataclass
class Compilers:
    running: str | None = None
    seen: int = 0

    def count(self) -> int:
        return self.seen


class Start:
    """A start; ``gpu_bytes`` is what the driver tells ``answers_after_s``, where it is asked."""

    def __init__(self, log: Path) -> None:
        log.write_text("")
        self.log, self.clock, self.tree, self.compilers = log, Clock(), Tree(), Compilers()
        tree: Any = self.tree
        compilers: Any = self.compilers
        target = Target("http://127.0.0.1:1", tiny_probes())
        self.lookout = Lookout.of(tree, LogView(log, 0), compilers, target, self.clock)
        self.gpu_bytes: int | None = None
        self.answers_after_s = 0.0
        self.asked = 0

    def write(self, text: str) -> None:
        with self.log.open("a") as file:
            file.write(text)
        self.tree.used = Usage(100 * MIB, 1.0, self.tree.used.io_bytes + len(text))

    async def ended(self, **limits: float) -> tuple[float, Stall]:
        async def wider() -> int | None:
            self.asked += 1
            self.clock.now_s += self.answers_after_s
            return self.gpu_bytes

        stall = await self.lookout.until_still(lambda now: opened(now, LENGTH_S, **limits), wider)
        return self.clock.now_s - 1000.0, stall


@pytest.fixture
def start(tmp_path: Path) -> Start:
    return Start(tmp_path / "llm.log")


async def test_a_start_that_does_nothing_ends_after_the_quiet_time(start: Start) -> None:
    assert await start.ended() == (QUIET_S, Stall(QUIET_S))
    assert start.asked == pytest.approx(QUIET_S / 2.0, abs=1)


async def test_a_server_that_only_logs_our_questions_stands_still(start: Start) -> None:
    start.write("loading\n")
    start.clock.then = lambda _: start.write('"GET /health HTTP/1.1" 503\n' * 100)
    ended_s, stall = await start.ended()
    assert (ended_s, stall.spins) == (QUIET_S, False)


async def test_a_download_at_a_crawl_is_waited_for_and_ended_when_it_stops(start: Start) -> None:
    def download(seconds: float) -> None:
        if seconds < 7200.0:
            written_bytes = start.tree.used.disk_bytes + MIB // 10
            start.tree.used = Usage(100 * MIB, 1.0, written_bytes, written_bytes)

    start.clock.then = download
    ended_s, stall = await start.ended()
    assert 7200.0 < ended_s <= 7200.0 + QUIET_S
    assert stall.quiet_s <= QUIET_S + 30.0


async def test_memory_that_fills_on_a_gpu_is_progress(start: Start) -> None:
    def fill(seconds: float) -> None:
        start.gpu_bytes = int(min(seconds, 300.0)) * MIB

    start.clock.then = fill
    ended_s, _ = await start.ended()
    assert 300.0 <= ended_s <= 300.0 + QUIET_S + 5.0


async def test_a_driver_that_answers_late_each_time_keeps_no_start_alive(start: Start) -> None:
    start.answers_after_s = 20.0
    ended_s, stall = await start.ended()
    assert QUIET_S <= ended_s <= QUIET_S + start.answers_after_s
    assert stall == Stall(ended_s)


async def test_a_silent_compile_is_waited_for(start: Start) -> None:
    def compile_one(seconds: float) -> None:
        start.compilers.running = "ptxas" if seconds < 1000.0 else None
        start.compilers.seen = int(min(seconds, 1000.0) // 20)

    start.clock.then = compile_one
    ended_s, _ = await start.ended()
    assert 1000.0 <= ended_s <= 1000.0 + QUIET_S + 1.0


async def test_a_spin_is_ended_and_told_as_one(start: Start) -> None:
    def spin(seconds: float) -> None:
        start.tree.used = Usage(100 * MIB, seconds, 10 * MIB)

    start.clock.then = spin
    ended_s, stall = await start.ended()
    assert LENGTH_S <= ended_s <= LENGTH_S + QUIET_S
    assert BUSY_S < LENGTH_S
    assert stall == Stall(ended_s, spins=True)


async def test_keys_that_run_are_progress_and_the_same_key_told_again_is_not(start: Start) -> None:
    def step(seconds: float) -> None:
        key = min(int(seconds // 25), 8)
        start.lookout.told(Progress("PRIME", key, 22, f"key {key} of 22"))

    start.clock.then = step
    ended_s, _ = await start.ended()
    assert ended_s == pytest.approx(200.0 + QUIET_S, abs=1.0)


async def test_an_error_that_is_asked_again_is_no_progress(start: Start) -> None:
    def ask(seconds: float) -> None:
        start.lookout.told(Progress("PRELOAD", 0, None, f"connection refused at {seconds}", "nothing"))

    start.clock.then = ask
    assert (await start.ended())[0] == QUIET_S


async def test_who_answers_not_yet_is_asked_on_for_the_window_only(start: Start) -> None:
    def ask(_: float) -> None:
        start.lookout.told(Progress("PRELOAD", 0, None, "GET /health: 503", "not_yet"))

    start.clock.then = ask
    ended_s, stall = await start.ended()
    assert ended_s == LENGTH_S + QUIET_S
    assert stall == Stall(ended_s)


async def test_a_step_is_told_to_be_new_once(start: Start) -> None:
    start.lookout.window = opened(start.lookout.sample(), LENGTH_S)
    step = Progress("PRIME", 1, 3, "canary")
    assert [start.lookout.told(step), start.lookout.told(step)] == [True, False]
    assert start.lookout.still_s == 0.0
