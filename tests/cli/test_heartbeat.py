from __future__ import annotations

import asyncio
import sys
import threading

import pytest

from toolkit.cli import heartbeat
from toolkit.supervise.starting import Step


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(heartbeat, "EVERY_S", 0.001)


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)


def test_what_is_done_is_told_with_how_long_it_takes_so_far():
    now_s = [0.0]
    doing = heartbeat.Doing(lambda: now_s[0])
    assert doing.text() is None
    doing.at(Step("plan"))
    now_s[0] = 5.0
    doing.at(Step("build", "llm"))
    now_s[0] = 65.0
    assert doing.text() == "building engine 'llm' (1 min 00 s so far)"


def test_a_block_that_takes_long_is_told_of_until_it_ends():
    told, lines = threading.Event(), []

    def say(text):
        lines.append(text)
        if len(lines) > 1:
            told.set()

    with heartbeat.beating(lambda: "building", say):
        assert told.wait(60)
    assert set(lines) == {"still building"}


def test_nothing_is_told_while_nothing_is_done():
    asked_again, asked, lines = threading.Event(), [], []

    def doing():
        asked.append(None)
        if len(asked) > 1:
            asked_again.set()

    with heartbeat.beating(doing, lines.append):
        assert asked_again.wait(60)
    assert lines == []


async def test_what_belongs_to_the_event_loop_is_asked_there():
    told, loop = asyncio.Event(), threading.current_thread()
    asked = []

    def doing():
        asked.append(threading.current_thread())
        return "starting"

    async with heartbeat.tended(doing, lambda text: told.set()):
        await told.wait()
    assert set(asked) == {loop}


def test_a_terminal_shows_it_by_itself(terminal):
    threads = threading.active_count()
    with heartbeat.beating(lambda: "building", print):
        assert threading.active_count() == threads


async def test_nor_does_the_event_loop_tell_a_terminal(terminal):
    tasks = len(asyncio.all_tasks())
    async with heartbeat.tended(lambda: "starting", print):
        assert len(asyncio.all_tasks()) == tasks
