from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.supervise import log_times
from toolkit.supervise.log_times import Times


def test_a_line_was_written_by_the_first_mark_behind_it(tmp_path: Path) -> None:
    log = tmp_path / "llm.log"
    log_times.add(log, ["mark", 1.0, 100, ""], ["mark", 2.0, 200, ""], ["mark", 9.0, 50, "0/stdout"])
    times = log_times.read(log)
    assert [times.written_by(offset) for offset in (1, 100, 101, 200, 201)] == [1.0, 1.0, 2.0, 2.0, None]
    assert times.written_by(50, "0/stdout") == 9.0
    assert times.written_by(1, "1/stdout") is None


def test_a_run_begins_at_the_last_such_mark(tmp_path: Path) -> None:
    log = tmp_path / "llm.log"
    log_times.add(log, ["run", 1.0, 0])
    log_times.add(log, ["mark", 2.0, 10, ""], ["run", 3.0, 10])
    assert log_times.read(log).run_start == 10


def test_no_marks_say_nothing(tmp_path: Path) -> None:
    assert log_times.read(tmp_path / "llm.log") == Times()
    assert log_times.dropped_bytes(tmp_path / "llm.log") == 0


def test_what_was_dropped_adds_up_and_marks_of_it_go(tmp_path: Path) -> None:
    log = tmp_path / "llm.log"
    log_times.add(log, ["run", 0.5, 0], ["mark", 1.0, 100, ""], ["mark", 2.0, 200, ""], ["mark", 2.0, 7, "0/stdout"])
    log_times.drop(log, 100, kept_from=0)
    log_times.drop(log, 50, kept_from=150)
    times = log_times.read(log)
    assert (times.dropped, log_times.dropped_bytes(log), times.run_start) == (150, 150, 0)
    assert times.marks == {"": ((200, 2.0),), "0/stdout": ((7, 2.0),)}


def test_marks_of_ranks_are_forgotten_alone(tmp_path: Path) -> None:
    log = tmp_path / "llm.log"
    log_times.add(log, ["mark", 1.0, 1, ""], ["mark", 1.0, 1, "0/stdout"])
    log_times.forget_ranks(log)
    assert log_times.read(log).marks == {"": ((1, 1.0),)}


def test_the_file_stays_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_times, "MAX_BYTES", 4096)
    log = tmp_path / "llm.log"
    for number in range(1000):
        log_times.add(log, ["mark", float(number), number, ""])
    assert log_times.path_of(log).stat().st_size < 5000
    assert log_times.read(log).written_by(999) == 999.0


@given(st.binary(max_size=300))
def test_no_file_breaks_the_reader(tmp_path_factory: pytest.TempPathFactory, text: bytes) -> None:
    log = tmp_path_factory.mktemp("times") / "llm.log"
    log_times.path_of(log).write_bytes(text + b'\n["mark",5.0,10,""]\n["mark",5.')
    assert log_times.read(log).written_by(10) is not None
