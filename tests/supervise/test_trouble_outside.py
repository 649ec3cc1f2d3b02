"""A full disk and a date that jumps: the world around the supervisor misbehaves, its services go on."""

from __future__ import annotations

import ast
import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.supervise.conftest import carriers, service_of, state_of, tiny, until
from toolkit.errors import ToolkitError
from toolkit.supervise import logs, status_writer
from toolkit.supervise.state import StateFolder, read_events

Start = Callable[..., Any]
DATES = {"time.time", "time.time_ns", "datetime.now", "datetime.utcnow"}
TOOLKIT = Path(logs.__file__).parents[1]


async def test_a_full_disk_stops_nothing_and_is_told_once(
    running: Start, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status_writer, "RETRY_S", 0.05)
    supervisor = await running(tiny("web"))
    await supervisor.wait_ready(30.0)

    def full(self: StateFolder, document: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(StateFolder, "append_event", full)
        patched.setattr(StateFolder, "write_status", full)
        for attempt in (2, 3):
            os.kill(service_of(supervisor, "web")["pid"], signal.SIGKILL)
            await until(lambda attempt=attempt: service_of(supervisor, "web")["attempt"] == attempt)  # type: ignore[misc]
            await supervisor.wait_ready(30.0)
    folder = StateFolder(state_dir)
    await until(lambda: "written again" in folder.events_file.read_text())
    await until(lambda: (folder.status() or {})["services"][0]["attempt"] == 3)
    events = list(read_events(folder.events_file))
    assert [event["id"] for event in events] == list(range(1, len(events) + 1)), "nothing is lost"
    assert sum("cannot be written" in event.get("text", "") for event in events) == 1


async def test_a_log_that_cannot_be_made_is_tried_again(running: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    real, refusals = logs.open_append, [2]

    def full(path: Path) -> int:
        if refusals[0]:
            refusals[0] -= 1
            raise OSError(28, "No space left on device", str(path))
        return real(path)

    monkeypatch.setattr(logs, "open_append", full)
    supervisor = await running(tiny("web"))
    await supervisor.wait_ready(30.0)
    assert (service_of(supervisor, "web")["attempt"], len(carriers("web"))) == (3, 1)
    assert service_of(supervisor, "web")["last_failure"]["class"] == "no_space"


async def test_a_date_that_jumps_changes_nothing(
    running: Start, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor = await running(tiny("web"), watch_s=0.02)
    await supervisor.wait_ready(30.0)
    real = time.time
    for jump_s in (86_400 * 365, -86_400 * 365):
        monkeypatch.setattr(time, "time", lambda jump_s=jump_s: real() + jump_s)
        before = service_of(supervisor, "web")["attempt"]
        os.kill(service_of(supervisor, "web")["pid"], signal.SIGKILL)
        await until(lambda before=before: service_of(supervisor, "web")["attempt"] == before + 1)  # type: ignore[misc]
        await supervisor.wait_ready(30.0)
    assert state_of(supervisor, "web") == "SERVING"
    dates = [event["at"] for event in read_events(state_dir / "events.jsonl")]
    assert dates == sorted(dates)
    assert {date[:4] for date in dates} <= {str(year) for year in _years(real())}


def _years(now_s: float) -> list[int]:
    return [time.gmtime(now_s + shift_s).tm_year for shift_s in (-86_400, 0, 86_400)]


def test_only_what_shows_or_compares_dates_asks_for_the_date() -> None:
    """Everything else measures with a clock that no change of the date moves."""
    rooms = ("supervise", "reserve", "warm")
    asked = {path for room in rooms for path in (TOOLKIT / room).rglob("*.py") if _names(path) & DATES}
    assert {path.name for path in asked} <= {"clock.py", "compile_watch.py", "leftovers.py", "log_reader.py"}


def _names(path: Path) -> set[str]:
    return {ast.unparse(node) for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)}


async def test_a_tool_error_that_is_not_about_space_is_not_tried_again(running: Start) -> None:
    def launch(_: int) -> Any:
        raise ToolkitError("there is no such model", code="no_model")

    supervisor = await running(tiny("other"), replace(tiny("web"), launch=launch))
    await until(lambda: state_of(supervisor, "web") == "FAILED")
    assert service_of(supervisor, "web")["attempt"] == 1
