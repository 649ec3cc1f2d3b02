from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.supervise.conftest import state_of, supervise, tiny, until
from tests.supervise.test_starting import OTHER
from toolkit.errors import ToolkitError
from toolkit.supervise import client, log_reader, process, starting
from toolkit.supervise.log_reader import Entry


def deployment(states: Path, name: str, *, alive: bool | None, services: tuple[str, ...] = ()) -> Path:
    """A state folder; ``alive`` None: it ended tidily."""
    folder = states / name
    (folder / "logs").mkdir(parents=True)
    me = process.own_identity()
    owner = {"deployment": name, "pid": me.pid, "start_ticks": me.start_ticks if alive else 1, "cookie": "x"}
    if alive is not None:
        (folder / "supervisor.json").write_text(json.dumps(owner))
    (folder / "status.json").write_text(json.dumps({"services": [{"name": each} for each in services]}))
    return folder


def test_the_only_running_deployment_is_found_without_its_name(tmp_path: Path) -> None:
    deployment(tmp_path, "old", alive=None)
    deployment(tmp_path, "rag", alive=True, services=("llm", "embed"))
    assert client.find(None, tmp_path).deployment == "rag"
    assert client.known_deployments(tmp_path) == ["old", "rag"]
    assert client.known_services(None, tmp_path) == ["llm", "embed"]


def test_several_running_deployments_are_named(tmp_path: Path) -> None:
    deployment(tmp_path, "a", alive=True)
    deployment(tmp_path, "b", alive=True)
    with pytest.raises(ToolkitError, match=r"several deployments run: a, b.*--deployment NAME"):
        client.find(None, tmp_path)
    assert client.find("b", tmp_path).deployment == "b"
    assert client.known_services(None, tmp_path) == []


@pytest.fixture
def start(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that starts the deployment 'rag' for the first time, and is at a build."""
    command = [sys.executable, "-c", OTHER, str(tmp_path / "rag"), "stays"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "said\n"
        yield process
        process.kill()


def test_a_deployment_that_starts_is_found_and_told_of(tmp_path: Path, start: subprocess.Popen[str]) -> None:
    deployment(tmp_path, "old", alive=None)
    document = client.find(None, tmp_path).status()
    assert (document["deployment"], document["ready"], document["starting"]["subject"]) == ("rag", False, "llm")
    assert [each.deployment for each in client.all_running(tmp_path)] == ["rag"]
    deployment(tmp_path, "other", alive=True)
    with pytest.raises(ToolkitError, match="several deployments run: other, rag") as refused:
        client.find(None, tmp_path)
    assert refused.value.details["deployments"] == ["other", "rag"]


@pytest.mark.parametrize("action", ["stop", "restart"])
def test_of_a_deployment_that_starts_no_service_can_be_asked_for(
    tmp_path: Path, start: subprocess.Popen[str], action: Any
) -> None:
    with pytest.raises(ToolkitError, match=r"'rag' is still starting: it is building engine 'llm'") as refused:
        client.find("rag", tmp_path).act(action, "web")
    assert refused.value.code == "starting"
    assert "'coexist down' interrupts it" in (refused.value.hint or "")


def test_a_start_that_is_taken_down_is_interrupted_and_gone(tmp_path: Path, start: subprocess.Popen[str]) -> None:
    ending = threading.Thread(target=start.wait)  # its parent, which reaps it
    ending.start()
    client.find("rag", tmp_path).down()
    ending.join()
    assert start.returncode == -signal.SIGTERM
    with pytest.raises(ToolkitError, match="'rag' is not running"):
        client.find("rag", tmp_path).status()


def test_logs_of_a_first_start_are_said_to_be_still_to_come(tmp_path: Path, start: subprocess.Popen[str]) -> None:
    with pytest.raises(ToolkitError, match="is still starting"):
        client.logs(None, None, states=tmp_path)
    lines = client.logs(None, "web", follow=True, states=tmp_path)
    (tmp_path / "rag" / "logs").mkdir()
    (tmp_path / "rag" / "logs" / "web.log").write_text("one\n")
    assert next(lines).text == "one"


def test_a_start_is_followed_until_it_ends(tmp_path: Path, start: subprocess.Popen[str]) -> None:
    states = client.find("rag", tmp_path).follow()
    assert next(states)["starting"]["step"] == "build"
    start.kill()
    start.wait()
    with pytest.raises(ToolkitError, match="'rag' is not running"):
        next(states)


def test_an_unknown_deployment_is_named_with_the_nearest(tmp_path: Path) -> None:
    deployment(tmp_path, "rag-node", alive=True)
    with pytest.raises(ToolkitError, match=r"'rag-nod' is not running.*Did you mean 'rag-node'"):
        client.find("rag-nod", tmp_path)


def test_nothing_running_is_said(tmp_path: Path) -> None:
    with pytest.raises(ToolkitError, match="no deployment is running"):
        client.find(None, tmp_path / "none")


def test_a_deployment_that_died_says_so(tmp_path: Path) -> None:
    deployment(tmp_path, "rag", alive=False)
    with pytest.raises(ToolkitError, match=r"its supervisor .* died without tidying up"):
        client.find(None, tmp_path).status()


def test_a_deployment_that_ended_because_a_service_failed_says_why(tmp_path: Path) -> None:
    folder = deployment(tmp_path, "rag", alive=None)
    service = {"name": "llm", "state": "FAILED", "last_failure": {"summary": "exited with status 134"}}
    (folder / "status.json").write_text(json.dumps({"services": [service]}))
    with pytest.raises(ToolkitError, match=r"'rag' is not running: 'llm' failed: exited with status 134"):
        client.find("rag", tmp_path).status()


def test_logs_of_the_deployment_that_ran_last_can_be_read(tmp_path: Path) -> None:
    folder = deployment(tmp_path, "rag", alive=None)
    (folder / "logs" / "llm.log").write_text("one\ntwo")
    (folder / "logs" / "embed.log").write_text("three\n")
    os.utime(folder / "logs" / "embed.log", (1000, 1000))
    assert list(client.logs(None, None, states=tmp_path)) == [
        Entry("embed", "three"),
        Entry("llm", "one"),
        Entry("llm", "two"),
    ]
    assert list(client.logs("rag", "embed", states=tmp_path)) == [Entry("embed", "three")]
    with pytest.raises(ToolkitError, match=r"'embd'.*Did you mean 'embed'"):
        client.logs(None, "embd", states=tmp_path)


@pytest.mark.parametrize(("count", "told"), [(0, []), (2, ["one", "two"]), (9, ["three", "one", "two"])])
def test_the_newest_lines_are_those_of_all_services_together(tmp_path: Path, count: int, told: list[str]) -> None:
    folder = deployment(tmp_path, "rag", alive=None)
    (folder / "logs" / "llm.log").write_text("one\ntwo")
    (folder / "logs" / "embed.log").write_text("three\n")
    os.utime(folder / "logs" / "embed.log", (1000, 1000))
    assert [entry.text for entry in client.logs(None, None, newest=count, states=tmp_path)] == told


def test_following_from_the_newest_lines_tells_them_and_all_that_come(tmp_path: Path) -> None:
    path = tmp_path / "llm.log"
    path.write_text("one\ntwo\nthree\n")
    acts: list[Callable[[], Any]] = [lambda: path.write_text("one\ntwo\nthree\nfour\nfive\n"), lambda: None]

    def sleep(_: float) -> None:
        acts.pop(0)()

    entries = log_reader.follow({"llm": path}, lambda: bool(acts), sleep, newest=1)
    assert [entry.text for entry in entries] == ["three", "four", "five"]


def test_followed_logs_come_as_they_are_written_until_nothing_runs(tmp_path: Path) -> None:
    path = tmp_path / "llm.log"
    path.write_text("one\nbeg")
    acts: list[Callable[[], Any]] = [
        lambda: path.write_text("one\nbegun\n"),
        lambda: path.write_text("new\n"),  # shorter than before: it was rotated
        lambda: path.write_text("new\nlast words"),
    ]

    def sleep(_: float) -> None:
        acts.pop(0)()

    entries = log_reader.follow({"llm": path}, lambda: bool(acts), sleep)
    assert [entry.text for entry in entries] == ["one", "begun", "new", "last words"]


async def test_following_tells_every_state_until_the_end(tmp_path: Path) -> None:
    supervisor = supervise(tmp_path / "tiny", tiny("a"))
    await supervisor.start()
    await supervisor.wait_ready(30.0)
    running = client.find(None, tmp_path)

    def states() -> list[str]:
        return [document["services"][0]["state"] for document in running.follow()]

    reader = asyncio.create_task(asyncio.to_thread(states))
    await until(lambda: supervisor._journal._listeners)
    await asyncio.to_thread(running.act, "restart", "a")
    await until(lambda: state_of(supervisor, "a") == "SERVING" and supervisor._instances["a"].attempt == 2)
    await supervisor.close()
    seen = list(dict.fromkeys(await reader))
    assert seen[0] == "SERVING"
    assert "PRELOAD" in seen


def test_a_start_that_was_killed_has_no_logs_and_hides_none(tmp_path: Path) -> None:
    (tmp_path / "killed").mkdir()
    (tmp_path / "killed" / starting.FILE).write_text("{}")
    with pytest.raises(ToolkitError, match="no deployment is running"):
        client.logs(None, None, states=tmp_path)
    (tmp_path / "rag" / "logs").mkdir(parents=True)
    (tmp_path / "rag" / "logs" / "web.log").write_text("one\n")
    assert [entry.text for entry in client.logs(None, None, states=tmp_path)] == ["one"]
