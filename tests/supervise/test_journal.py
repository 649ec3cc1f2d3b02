from __future__ import annotations

from pathlib import Path

import pytest

from toolkit.supervise import journal
from toolkit.supervise.clock import Calendar
from toolkit.supervise.journal import Journal
from toolkit.supervise.state import StateFolder


class Still:
    def now(self) -> float:
        return 100.5

    async def sleep(self, seconds: float) -> None:
        raise AssertionError


@pytest.fixture
def told(tmp_path: Path) -> Journal:
    return Journal(StateFolder(tmp_path), Still(), Calendar(100.0, 1_700_000_000.0))


def test_events_are_numbered_and_dated_by_the_steady_clock(told: Journal) -> None:
    told.tell("log", "llm", 2, text="hello")
    assert list(told.recent) == [
        {"id": 1, "at": "2023-11-14T22:13:20.500Z", "kind": "log", "service": "llm", "attempt": 2, "text": "hello"}
    ]


async def test_a_listener_that_does_not_read_is_dropped_and_others_are_not(
    told: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "QUEUED_EVENTS", 2)
    with told.listen() as deaf, told.listen() as keen:
        heard = []
        for number in range(5):
            told.tell("log", text=str(number))
            heard.append(keen.get_nowait()["text"])
    assert heard == ["0", "1", "2", "3", "4"]
    assert deaf.qsize() == 2


def test_a_disk_that_refuses_is_counted(told: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: StateFolder, event: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(StateFolder, "append_event", full)
    told.tell("log")
    assert (told.write_errors, len(told.recent)) == (1, 1)
