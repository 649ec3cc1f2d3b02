from __future__ import annotations

import os
from pathlib import Path

import pytest

from toolkit.supervise import logs
from toolkit.supervise.logs import LogView


def test_a_tail_holds_this_attempts_output_only(tmp_path: Path) -> None:
    path = tmp_path / "llm.log"
    path.write_text("old\n")
    view = LogView(path, logs.size_bytes(path))
    with path.open("a") as file:
        file.write("new 1\nnew 2\n")
    assert view.tail() == "new 1\nnew 2\n"
    assert view.tail(6) == "new 2\n"


def test_no_log_is_an_empty_one(tmp_path: Path) -> None:
    assert LogView(tmp_path / "none.log", 0).tail() == ""
    assert logs.size_bytes(tmp_path / "none.log") == 0


def test_rotation_keeps_the_old_text_and_the_child_writes_on(tmp_path: Path) -> None:
    path = tmp_path / "llm.log"
    descriptor = logs.open_append(path)
    os.write(descriptor, b"x" * 100)
    view = LogView(path, 50)
    logs.rotate(path)
    os.write(descriptor, b"after\n")
    os.close(descriptor)
    assert path.read_bytes() == b"after\n"
    assert (tmp_path / "llm.log.1").read_bytes() == b"x" * 100
    assert view.tail() == "after\n"


def test_only_a_long_log_is_rotated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "MAX_BYTES", 3)
    path = tmp_path / "llm.log"
    assert not logs.is_long(path)
    path.write_text("123")
    assert not logs.is_long(path)
    path.write_text("1234")
    assert logs.is_long(path)


def test_a_log_is_its_owners_alone(tmp_path: Path) -> None:
    os.close(logs.open_append(tmp_path / "llm.log"))
    assert (tmp_path / "llm.log").stat().st_mode & 0o777 == 0o600


def test_the_last_line_is_the_last_that_says_something() -> None:
    assert logs.last_line("one\n two \n\n  \n") == "two"
    assert logs.last_line("\n") is None
