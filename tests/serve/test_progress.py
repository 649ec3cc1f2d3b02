from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from toolkit.errors import ToolkitError
from toolkit.serve.progress import Progress, disk_full, run_step


@pytest.fixture(autouse=True)
def _the_test_itself_lives_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolkit.serve.progress.die_with_parent", lambda: None)


def events(work: Callable[[Progress], Mapping[str, Any]]) -> tuple[int, list[dict[str, Any]]]:
    reader, writer = os.pipe()
    progress = Progress(writer)
    status = run_step(progress, lambda: work(progress))
    os.close(writer)
    with os.fdopen(reader) as lines:
        return status, [json.loads(line) for line in lines]


def test_a_step_is_told_when_it_begins_and_ends() -> None:
    def work(progress: Progress) -> Mapping[str, Any]:
        with progress.step("export"):
            pass
        return {"bytes": 3}

    status, told = events(work)
    assert status == 0
    assert [(event.get("step"), event.get("state")) for event in told[:2]] == [("export", "begin"), ("export", "end")]
    assert told[1]["seconds"] >= 0
    assert told[2] == {"result": {"bytes": 3}}


def test_an_error_of_a_person_travels_whole() -> None:
    def work(_: Progress) -> Mapping[str, Any]:
        raise ToolkitError("wrong", "here", "change it", code="model", needed=3)

    status, told = events(work)
    assert status == 1
    expected = {"what": "wrong", "where": "here", "hint": "change it", "code": "model", "details": {"needed": 3}}
    assert told == [{"error": expected}]


def test_a_step_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    step = (
        "import os, time; from pathlib import Path; from toolkit.serve.progress import Progress, run_step\n"
        f"def work(): Path({str(pid_file)!r}).write_text(str(os.getpid())); time.sleep(300)\n"
        "run_step(Progress(None), work)"
    )
    parent = f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {step!r}]); time.sleep(300)"
    process = subprocess.Popen([sys.executable, "-c", parent], cwd=Path(__file__).resolve().parents[2])
    while not (pid_file.exists() and pid_file.read_text()):
        time.sleep(0.02)
    child = psutil.Process(int(pid_file.read_text()))
    process.kill()
    process.wait()
    child.wait(timeout=20)


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device", "model.safetensors"),
        OSError(errno.EFBIG, "File too large"),
        RuntimeError("as: fatal error: /x.o: No space left on device"),
    ],
)
def test_a_full_disk_is_one_clear_error(error: Exception) -> None:
    def work(_: Progress) -> Mapping[str, Any]:
        raise error

    status, told = events(work)
    assert status == 1
    assert told[0]["error"]["code"] == "no_space"


def test_a_full_disk_is_found_behind_another_error() -> None:
    error = RuntimeError("compilation failed")
    error.__cause__ = OSError(errno.EDQUOT, "Disk quota exceeded")
    assert disk_full(error) is not None


def test_any_other_exception_passes_for_the_log() -> None:
    with pytest.raises(KeyError):
        run_step(Progress(None), lambda: {}["missing"])
