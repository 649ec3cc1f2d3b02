from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from toolkit.diagnose import classify
from toolkit.diagnose import follow as following
from toolkit.diagnose.follow import follow


def test_each_change_of_the_diagnosis_is_told_once_as_the_log_grows(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_text("Loading weights:  10%| | 1/10 [00:01<?, ?it/s]\n")
    writes = iter(
        ["Loading weights:  20%| | 2/10 [00:01<?, ?it/s]\n", "OSError: [Errno 98] Address already in use\n", ""]
    )
    left = [3]

    def sleep(_: float) -> None:
        with log.open("a") as file:
            file.write(next(writes))
        left[0] -= 1

    found = list(follow(log, goes_on=lambda: left[0] > 0, sleep=sleep))
    assert [(each.kind, each.root_line) for each in found] == [("healthy", None), ("port_in_use", 3)]


def test_each_byte_of_a_growing_log_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, read, left = tmp_path / "x.log", [], [5]
    log.write_text("Loading weights\n" * 1000)
    pieces_of = following.read_pieces

    def counted(path: Path, start_bytes: int = 0) -> Iterator[bytes]:
        for piece in pieces_of(path, start_bytes):
            read.append(len(piece))
            yield piece

    def sleep(_: float) -> None:
        with log.open("a") as file:
            file.write("Loading weights\n")
        left[0] -= 1

    monkeypatch.setattr(following, "read_pieces", counted)
    assert [each.kind for each in follow(log, goes_on=lambda: left[0] > 0, sleep=sleep)] == ["healthy"]
    assert sum(read) == log.stat().st_size


def test_a_line_counts_once_its_end_is_written_and_at_the_end_without_one(tmp_path: Path) -> None:
    log, left = tmp_path / "x.log", [2]
    log.write_text("starting\nOSError: [Errno 98] Addr")

    def sleep(_: float) -> None:
        if left[0] == 1:
            log.open("a").write("ess already in use")
        left[0] -= 1

    found = list(follow(log, goes_on=lambda: left[0] > 0, sleep=sleep))
    assert (found[-1].kind, found[-1].root_line) == ("port_in_use", 2)


def test_a_rotated_log_is_begun_anew(tmp_path: Path) -> None:
    log, left = tmp_path / "x.log", [1]
    log.write_text("OSError: [Errno 98] Address already in use\n")

    def sleep(_: float) -> None:
        log.write_text("Loading weights\n")
        left[0] -= 1

    assert [each.kind for each in follow(log, goes_on=lambda: left[0] > 0, sleep=sleep)] == ["port_in_use", "healthy"]


def test_reading_begins_where_the_last_attempt_began(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_text("OSError: [Errno 98] Address already in use\n")
    start = log.stat().st_size
    log.open("a").write("ImportError: libmpi.so.12: cannot open shared object file\n")
    (found,) = follow(log, goes_on=lambda: False, start_bytes=start)
    assert (found.kind, found.root_line) == ("missing_shared_library", 2)
    assert found == classify(following.read_pieces(log, start), lines_before=following.count_lines(log, start))
