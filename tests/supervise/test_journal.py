from __future__ import annotations

import os
from pathlib import Path

import pytest

from toolkit.supervise import journal
from toolkit.supervise.clock import Calendar
from toolkit.supervise.journal import Journal
from toolkit.supervise.state import StateFolder, read_events


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


def test_a_disk_that_refuses_is_told_once_and_gets_all_when_it_takes_again(
    told: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told._folder.open("rag")

    def full(self: StateFolder, event: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(StateFolder, "append_event", full)
        for number in range(3):
            told.tell("log", text=str(number))
        told.flush()
    told.flush()
    told._folder.close()
    texts = [event["text"] for event in read_events(tmp_path / "events.jsonl")]
    refused = "the state folder cannot be written (No space left on device); services are not touched"
    assert texts == ["0", refused, "1", "2", "the state folder can be written again"]
    assert [event["text"] for event in told.recent] == texts


def test_two_things_that_cannot_be_written_are_one_outage(told: Journal) -> None:
    told.disk("status", OSError(28, "No space left on device"))
    told.disk("events", OSError(28, "No space left on device"))
    told.disk("events", None)
    assert len(told.recent) == 1
    told.disk("status", None)
    assert [event["text"] for event in told.recent][1:] == ["the state folder can be written again"]


def test_an_event_that_was_written_in_part_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = StateFolder(tmp_path)
    folder.open("rag")
    folder.append_event({"id": 1})
    real = os.write
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", lambda descriptor, data: real(descriptor, data[:4]))
        with pytest.raises(OSError, match="No space left"):
            folder.append_event({"id": 2})
    folder.append_event({"id": 3})
    folder.close()
    assert (tmp_path / "events.jsonl").read_text().splitlines() == ['{"id":1}', '{"id":3}']
