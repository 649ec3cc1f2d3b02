from __future__ import annotations

import logging
import resource
from collections.abc import Iterator

import pytest
from aiohttp.http_exceptions import BadHttpMessage

from toolkit.serve.connections import Connections, NoStrangers, raise_descriptor_limit


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_a_connection_is_overdue_when_it_was_idle_all_the_time() -> None:
    clock = Clock()
    connections = Connections[str](10, clock)
    assert connections.overdue(["a", "b"]) == []
    clock.now_s = 9
    assert connections.overdue(["a", "b", "c"]) == []
    clock.now_s = 10
    assert connections.overdue(["a", "b", "c"]) == ["a", "b"]


def test_a_request_under_way_keeps_its_connection_and_its_time_begins_anew_after() -> None:
    clock = Clock()
    connections = Connections[str](10, clock)
    connections.overdue(["a"])
    with connections.busy("a"):
        clock.now_s = 50
        assert connections.overdue(["a"]) == []
    assert connections.overdue(["a"]) == []
    clock.now_s = 60
    assert connections.overdue(["a"]) == ["a"]


def test_connections_that_have_gone_are_forgotten() -> None:
    clock = Clock()
    connections = Connections[str](10, clock)
    connections.overdue(["a"])
    connections.overdue([])
    clock.now_s = 10
    assert connections.overdue(["a"]) == []
    assert connections._since_s == {"a": 10}


@pytest.fixture
def descriptors() -> Iterator[tuple[int, int]]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield before
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_descriptors_are_raised_to_what_is_wanted_within_what_is_allowed(descriptors: tuple[int, int]) -> None:
    _, hard = descriptors
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    assert raise_descriptor_limit(300) == 300
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (300, hard)
    assert raise_descriptor_limit(200) == 300


def test_what_does_not_speak_http_is_not_logged_and_everything_else_is() -> None:
    def record(error: Exception) -> logging.LogRecord:
        return logging.LogRecord("aiohttp.server", logging.ERROR, "", 0, "x", (), (type(error), error, None))

    assert not NoStrangers().filter(record(BadHttpMessage("noise")))
    assert NoStrangers().filter(record(ValueError("a fault of ours")))
