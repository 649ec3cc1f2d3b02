from __future__ import annotations

from pathlib import Path

import pytest

from toolkit.runtimes.base import LogCheck
from toolkit.supervise import log_checks
from toolkit.supervise.logs import LogView

VETO = LogCheck(r"Falling back to \w+", "another backend was taken")
WANTED = LogCheck(r"^backend=VANILLA", "the backend is not told", wanted=True)


@pytest.fixture
def log(tmp_path: Path):
    def written(text: str, before: str = "") -> LogView:
        path = tmp_path / "llm.log"
        path.write_text(before + text)
        return LogView(path, len(before))

    return written


def test_a_line_that_must_not_be_there_ends_the_attempt_and_is_shown(log) -> None:
    found = log_checks.judge((VETO,), log("loading\n[W] Falling back to TRTLLM attention backend\nready\n"))
    assert found is not None
    assert (found.summary, found.verdict, found.kind) == (VETO.why, "stop", "log_check")
    assert found.line == "[W] Falling back to TRTLLM attention backend"


def test_a_line_that_must_be_there_ends_it_when_it_is_missing(log) -> None:
    found = log_checks.judge((WANTED,), log("x backend=VANILLA\n"))
    assert found is not None
    assert (found.summary, found.line) == (WANTED.why, None)
    assert log_checks.judge((WANTED,), log("x\nbackend=VANILLA\n")) is None


def test_what_an_earlier_attempt_said_does_not_count(log) -> None:
    assert log_checks.judge((VETO,), log("ready\n", before="Falling back to TRTLLM\n")) is None


def test_a_log_that_cannot_be_read_says_nothing(tmp_path: Path) -> None:
    gone = LogView(tmp_path / "gone.log", 0)
    assert log_checks.judge((), gone) is None
    assert log_checks.judge((VETO,), gone) is None
    assert log_checks.judge((WANTED,), gone) is not None
