from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.supervise.conftest import tiny
from toolkit.config.models import Deployment
from toolkit.errors import ToolkitError
from toolkit.supervise import document, starting
from toolkit.supervise.clock import Calendar
from toolkit.supervise.lifecycle import Instance
from toolkit.supervise.starting import Step

WEB = {"runtime": "command", "argv": ["sleep", "9"], "ready": {"log": "up"}, "canary": {"path": "/"}}
RAG = Deployment.model_validate({"version": 1, "name": "rag", "services": {"web": WEB, "api": {**WEB, "port": 8005}}})
# Says of itself that it builds, then waits to be killed; "gone" ends at once and leaves its word behind.
OTHER = """
import os, sys, time
from pathlib import Path
from tests.supervise.test_starting import RAG
from toolkit.supervise import starting
with starting.recorded(Path(sys.argv[1]), RAG, starting.untold) as at:
    at(starting.Step("build", "llm"))
    print("said", flush=True)
    sys.argv[2] == "gone" and os._exit(9)
    time.sleep(600)
"""


@pytest.fixture
def other(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that starts the deployment."""
    command = [sys.executable, "-c", OTHER, str(tmp_path), "stays"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "said\n"
        yield process
        process.kill()


def test_a_start_is_told_with_its_step_and_how_long_it_is_at_it(tmp_path: Path) -> None:
    heard: list[Step] = []
    with starting.recorded(tmp_path, RAG, heard.append, now_s=lambda: 100.0) as at:
        at(Step("plan"))
        at(Step("build", "llm"))
    start = starting.read(tmp_path)
    assert start is not None
    assert (start.step, heard) == (Step("build", "llm"), [Step("plan"), Step("build", "llm")])
    told = start.document(now_s=175.0)["starting"]
    assert (told["step"], told["subject"], told["seconds"]) == ("build", "llm", 75.0)
    assert "building engine 'llm'" in start.sentence(175.0)
    assert "1 min 15 s" in start.sentence(175.0)


def test_the_status_of_a_start_has_every_key_of_one_that_runs(tmp_path: Path) -> None:
    with starting.recorded(tmp_path, RAG, starting.untold) as at:
        at(Step("check"))
    start = starting.read(tmp_path)
    assert start is not None
    found = start.document(now_s=0.0)
    runs = document.status("rag", [tiny("web")], {"web": Instance("web")}, now_s=0.0, calendar=Calendar(0.0))
    assert found.keys() == runs.keys()
    assert all(row.keys() == runs["services"][0].keys() for row in found["services"])
    assert [(row["name"], row["state"], row["port"], row["cpus"]) for row in found["services"]] == [
        ("web", "INIT", None, None),
        ("api", "INIT", 8005, None),
    ]
    assert found["ready"] is False


def test_a_start_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    def fail() -> None:
        with starting.recorded(tmp_path, RAG, starting.untold) as at:
            at(Step("check"))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_a_start_that_became_a_supervisor_is_forgotten(tmp_path: Path) -> None:
    with starting.recorded(tmp_path, RAG, starting.untold) as at:
        at(Step("launch"))
    starting.forget(tmp_path)
    assert starting.read(tmp_path) is None
    starting.forget(tmp_path)


def test_the_word_of_a_process_that_was_killed_counts_for_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-c", OTHER, str(tmp_path), "gone"]
    assert subprocess.run(command, check=False, capture_output=True).returncode == 9
    assert (tmp_path / starting.FILE).exists()
    assert starting.read(tmp_path) is None


def test_a_process_that_was_given_the_same_number_is_not_taken_for_it(tmp_path: Path) -> None:
    with starting.recorded(tmp_path, RAG, starting.untold) as at:
        at(Step("check"))
    found = json.loads((tmp_path / starting.FILE).read_text())
    found["process"]["start_time"] += 1
    (tmp_path / starting.FILE).write_text(json.dumps(found))
    assert starting.read(tmp_path) is None


def test_of_two_starts_the_second_is_refused_until_the_first_has_ended(
    tmp_path: Path, other: subprocess.Popen[str]
) -> None:
    with pytest.raises(ToolkitError, match=f"is still starting: .*building engine 'llm' .pid {other.pid}") as caught:
        begin(tmp_path)
    assert caught.value.code == "starting"
    start = starting.read(tmp_path)
    assert start is not None
    assert start.process.pid == other.pid
    other.kill()
    other.wait()
    begin(tmp_path)
    start = starting.read(tmp_path)
    assert start is not None
    assert start.step == Step("check")


def begin(state_dir: Path) -> None:
    with starting.recorded(state_dir, RAG, starting.untold) as at:
        at(Step("check"))


def test_a_disk_that_takes_no_record_holds_up_no_start(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    heard: list[Step] = []
    with starting.recorded(tmp_path / "file" / "state", RAG, heard.append) as at:
        at(Step("plan"))
    assert heard == [Step("plan")]


values = st.none() | st.integers() | st.text() | st.lists(st.integers()) | st.dictionaries(st.text(), st.integers())


@given(found=st.dictionaries(st.sampled_from(["process", "step", "since_s", "status", "more"]), values))
def test_a_damaged_record_is_none(tmp_path_factory: pytest.TempPathFactory, found: dict[str, Any]) -> None:
    folder = tmp_path_factory.mktemp("state")
    (folder / starting.FILE).write_text(json.dumps(found))
    assert starting.read(folder) is None


@pytest.mark.parametrize("step", [{"name": "dance"}, {"name": ["plan"]}, {}, {"name": "plan", "more": 1}])
def test_a_step_that_nobody_knows_is_none(tmp_path: Path, step: dict[str, Any]) -> None:
    with starting.recorded(tmp_path, RAG, starting.untold) as at:
        at(Step("check"))
    found = json.loads((tmp_path / starting.FILE).read_text())
    (tmp_path / starting.FILE).write_text(json.dumps({**found, "step": step}))
    assert starting.read(tmp_path) is None
