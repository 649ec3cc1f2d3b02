"""Messages as a service manager gets them, on real datagram sockets."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from toolkit.supervise.notify import Manager, Teller, in_words, tended


@dataclass
class Supervisor:
    states: dict[str, str]
    stopping: bool = False
    ready: bool = field(default=False)
    reloading: bool = False

    def snapshot(self) -> dict[str, Any]:
        return {"ready": self.ready, "services": [{"name": n, "state": s} for n, s in self.states.items()]}


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[socket.socket, dict[str, str]]]:
    name = str(tmp_path / "notify") if request.param == "path" else f"\0coexist-test-{secrets.token_hex(8)}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(name)
        listener.settimeout(5)
        yield listener, {"NOTIFY_SOCKET": name.replace("\0", "@")}


def message(listener: socket.socket) -> list[str]:
    return listener.recv(4096).decode().split("\n")


def nothing_more(listener: socket.socket) -> bool:
    listener.setblocking(False)
    try:
        listener.recv(4096)
    except BlockingIOError:
        return True
    finally:
        listener.settimeout(5)
    return False


def test_a_start_is_told_step_by_step_and_ready_once(manager: tuple[socket.socket, dict[str, str]]) -> None:
    listener, environ = manager
    teller, supervisor = Teller(Manager(environ)), Supervisor({"llm": "PRELOAD", "embed": "SERVING"})
    teller.changed(supervisor)
    assert message(listener) == ["STATUS=1 of 2 serving: llm PRELOAD"]
    teller.changed(supervisor)
    assert nothing_more(listener)
    supervisor.states["llm"], supervisor.ready = "SERVING", True
    teller.changed(supervisor)
    assert message(listener) == ["READY=1", "STATUS=2 of 2 serving"]
    supervisor.states["llm"], supervisor.ready = "BACKOFF", False
    teller.changed(supervisor)
    assert message(listener) == ["STATUS=1 of 2 serving: llm BACKOFF"]
    supervisor.states["llm"], supervisor.ready = "SERVING", True
    teller.changed(supervisor)
    assert message(listener) == ["STATUS=2 of 2 serving"]


def test_a_stop_is_told_and_nothing_is_ready_after_it(manager: tuple[socket.socket, dict[str, str]]) -> None:
    listener, environ = manager
    teller, supervisor = Teller(Manager(environ)), Supervisor({"llm": "SERVING"}, stopping=True, ready=True)
    teller.changed(supervisor)
    assert message(listener) == ["STOPPING=1", "STATUS=stopping, 1 of 1 serving"]
    supervisor.states["llm"] = "STOPPED"
    teller.changed(supervisor)
    assert message(listener) == ["STATUS=stopping, 0 of 1 serving: llm STOPPED"]


def test_another_shape_is_a_reload_that_ends_with_ready(manager: tuple[socket.socket, dict[str, str]]) -> None:
    listener, environ = manager
    teller, supervisor = Teller(Manager(environ)), Supervisor({"llm": "SERVING"}, ready=True)
    teller.changed(supervisor)
    message(listener)
    supervisor.reloading = True
    teller.changed(supervisor)
    reloading, at = message(listener)
    assert (reloading, at.partition("=")[0]) == ("RELOADING=1", "MONOTONIC_USEC")
    assert int(at.partition("=")[2]) > 0
    teller.changed(supervisor)
    assert nothing_more(listener)
    supervisor.reloading, supervisor.ready = False, False
    supervisor.states["llm"] = "PRELOAD"
    teller.changed(supervisor)
    assert message(listener) == ["STATUS=0 of 1 serving: llm PRELOAD"]
    supervisor.states["llm"], supervisor.ready = "SERVING", True
    teller.changed(supervisor)
    assert message(listener) == ["READY=1", "STATUS=1 of 1 serving"]


async def test_the_watchdog_hears_from_the_event_loop(manager: tuple[socket.socket, dict[str, str]]) -> None:
    listener, environ = manager
    async with tended({**environ, "WATCHDOG_USEC": "30000", "WATCHDOG_PID": str(os.getpid())}):
        for _ in range(3):
            assert await asyncio.to_thread(message, listener) == ["WATCHDOG=1"]
    await asyncio.sleep(0)
    while not nothing_more(listener):
        pass
    await asyncio.sleep(0.03)
    assert nothing_more(listener)


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"WATCHDOG_USEC": "1000"},
        {"NOTIFY_SOCKET": "@x", "WATCHDOG_USEC": "1000", "WATCHDOG_PID": "1"},
        {"NOTIFY_SOCKET": "@x", "WATCHDOG_USEC": "0"},
        {"NOTIFY_SOCKET": "@x", "WATCHDOG_USEC": "soon"},
    ],
)
def test_no_watchdog_where_none_is_meant_for_us(environ: dict[str, str]) -> None:
    assert Manager(environ).watchdog_s is None


@pytest.mark.parametrize("name", ["", "vsock:2:1234", "relative", "/nowhere/at/all", "@nobody-listens-here"])
def test_nobody_who_listens_is_no_error(name: str) -> None:
    Manager({"NOTIFY_SOCKET": name}).tell("READY=1")


def test_a_manager_that_does_not_read_blocks_nothing(manager: tuple[socket.socket, dict[str, str]]) -> None:
    _, environ = manager
    for _ in range(2000):
        Manager(environ).tell("STATUS=" + "x" * 150)


def test_the_status_is_one_short_line() -> None:
    told = in_words(Supervisor({f"service-{n}": "INIT" for n in range(100)}).snapshot())
    assert told.startswith("0 of 100 serving: service-0 INIT, ")
    assert len(told) <= 200
