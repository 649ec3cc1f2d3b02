from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from toolkit.supervise import log_times, logs
from toolkit.supervise.logs import Cursor, LogFile, LogSearch, LogView

BLOCK = 4096
Cut = Callable[[Path], None]


@pytest.fixture(params=["taken from the front", "copied and cut"])
def rotate(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Cut:
    """Rotation as both kinds of file systems allow it."""
    if request.param == "copied and cut":
        monkeypatch.setattr(logs, "_fallocate", lambda *_: False)
    elif not _collapses(tmp_path):
        pytest.skip("this file system cannot take bytes from a file's front")
    return logs.rotate


def _collapses(folder: Path) -> bool:
    path = folder / "probe"
    path.write_bytes(b"x" * 3 * BLOCK)
    with path.open("r+b") as file:
        return logs._fallocate(file.fileno(), logs._COLLAPSE_RANGE, os.fstat(file.fileno()).st_blksize)


def everything(path: Path, start: int = 0) -> bytes:
    return b"".join(LogFile(path).pieces(start))


def test_a_tail_holds_this_attempts_output_only(tmp_path: Path) -> None:
    path = tmp_path / "llm.log"
    path.write_text("old\n")
    view = LogView(path, logs.size_bytes(path))
    with path.open("a") as file:
        file.write("new 1\nnew 2\n")
    assert view.tail() == "new 1\nnew 2\n"
    assert view.tail(6) == "new 2\n"


def test_no_log_is_an_empty_one(tmp_path: Path) -> None:
    view = LogView(tmp_path / "none.log", 0)
    assert (view.tail(), list(view.pieces()), view.written_bytes()) == ("", [], 0)
    assert logs.size_bytes(tmp_path / "none.log") == 0


def test_rotation_keeps_the_old_text_and_the_child_writes_on(tmp_path: Path, rotate: Cut) -> None:
    path = tmp_path / "llm.log"
    descriptor = logs.open_append(path)
    os.write(descriptor, b"x" * 3 * BLOCK)
    view = LogView(path, 3 * BLOCK - 10)
    rotate(path)
    os.write(descriptor, b"after\n")
    os.close(descriptor)
    assert logs.size_bytes(path) <= BLOCK + 6
    assert everything(path) == b"x" * 3 * BLOCK + b"after\n"
    assert view.tail() == "x" * 10 + "after\n"
    assert view.tail(6) == "after\n"
    assert (path.stat().st_mode & 0o777, logs.previous(path).stat().st_mode & 0o777) == (0o600, 0o600)


def test_offsets_go_on_through_many_rotations(tmp_path: Path, rotate: Cut) -> None:
    path = tmp_path / "llm.log"
    written = b""
    for number in range(4):
        text = f"line of round {number}\n".encode() * 500
        with path.open("ab") as file:
            file.write(text)
        written += text
        assert LogFile(path).end() == len(written)
        rotate(path)
        assert LogFile(path).end() == len(written)
    kept = everything(path)
    assert written.endswith(kept)
    assert len(kept) >= 500 * 16  # the last rotation's text at least
    assert everything(path, len(written) - 30) == written[-30:]
    view = LogView(path, len(written) - 40)
    assert b"".join(view.pieces()) == written[-40:]


def test_rotation_under_a_flood_loses_and_repeats_no_line(tmp_path: Path) -> None:
    if not _collapses(tmp_path):
        pytest.skip("this file system cannot take bytes from a file's front")
    path, stop = tmp_path / "llm.log", threading.Event()
    total = 0

    def flood() -> None:
        nonlocal total
        descriptor = logs.open_append(path)
        while not stop.is_set():
            os.write(descriptor, b"".join(b"%09d\n" % number for number in range(total, total + 100)))
            total += 100
            time.sleep(0.0005)
        os.close(descriptor)

    writer = threading.Thread(target=flood)
    writer.start()
    cursor, seen = Cursor(LogFile(path)), []
    for _ in range(15):
        seen += [int(text) for text, _ in cursor.lines()]
        if logs.size_bytes(path) > 2 * BLOCK:
            logs.rotate(path)
    stop.set()
    writer.join()
    seen += [int(text) for text, _ in cursor.lines()]
    assert seen == list(range(total))


def test_a_reader_that_fell_behind_by_two_rotations_goes_on_at_what_is_kept(tmp_path: Path, rotate: Cut) -> None:
    path = tmp_path / "llm.log"
    path.write_bytes(b"half a line")
    cursor = Cursor(LogFile(path))
    assert list(cursor.lines()) == []
    for _ in range(2):
        with path.open("ab") as file:
            file.write(b"-\n" * 3 * BLOCK)
        rotate(path)
    texts = [text for text, _ in cursor.lines()]
    assert set(texts) <= {b"-", b""}


@pytest.mark.parametrize("appends", [True, False])
def test_a_rank_file_that_is_not_appended_to_is_cut_as_a_hole(tmp_path: Path, appends: bool) -> None:
    path = tmp_path / "stdout"
    flags = os.O_WRONLY | os.O_CREAT | (os.O_APPEND if appends else 0)
    descriptor = os.open(path, flags, 0o600)
    lines = [b"%07d\n" % number for number in range(3 * BLOCK)]
    os.write(descriptor, b"".join(lines))
    before = logs.disk_bytes(path)
    logs.punch(path)
    os.write(descriptor, b"after\n")
    os.close(descriptor)
    assert logs.disk_bytes(path) < before / 2
    texts = [text for text, _ in Cursor(LogFile(path)).lines()]
    assert texts == [line.rstrip() for line in lines] + [b"after"]
    logs.punch(path)
    assert LogView(tmp_path / "none.log", 0).written_bytes() == 0


def test_a_cut_where_holes_are_unknown_shows_no_zeros(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_fallocate", lambda *_: False)
    path = tmp_path / "stdout"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    os.write(descriptor, b"x\n" * 2 * BLOCK)
    logs.punch(path)
    os.write(descriptor, b"after\n")
    os.close(descriptor)
    assert b"\0" not in everything(path)
    assert everything(path).endswith(b"after\n")


def test_a_reader_that_stands_still_delays_a_rotation_and_breaks_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "_LOCK_TRIES", 2)
    path = tmp_path / "llm.log"
    path.write_bytes(b"x\n" * 2 * BLOCK)
    with path.open("rb") as reader:
        logs.fcntl.flock(reader.fileno(), logs.fcntl.LOCK_SH)
        with pytest.raises(BlockingIOError):
            logs.rotate(path)
    assert everything(path) == b"x\n" * 2 * BLOCK
    logs.rotate(path)
    assert everything(path) == b"x\n" * 2 * BLOCK


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30, deadline=None)
@given(
    texts=st.lists(st.binary(min_size=1, max_size=3 * BLOCK), min_size=1, max_size=5),
    cuts=st.sets(st.integers(0, 4)),
)
def test_one_rotation_behind_everything_can_be_read(
    tmp_path_factory: pytest.TempPathFactory, texts: list[bytes], cuts: set[int]
) -> None:
    path = tmp_path_factory.mktemp("logs") / "llm.log"
    last_cut = max((cut for cut in cuts if cut < len(texts)), default=0)
    for number, text in enumerate(texts):
        with path.open("ab") as file:
            file.write(text)
        if number in cuts:
            logs.rotate(path)
    written = b"".join(texts)
    assert written.endswith(everything(path))
    assert everything(path).endswith(b"".join(texts[last_cut:]))
    assert LogFile(path).end() == len(written)


def test_of_a_flood_the_last_part_is_kept(tmp_path: Path, rotate: Cut, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "MAX_BYTES", BLOCK)
    path = tmp_path / "llm.log"
    text = b"".join(b"%07d\n" % number for number in range(2 * BLOCK))
    path.write_bytes(text)
    rotate(path)
    kept = everything(path)
    assert len(kept) <= 5 * BLOCK
    assert text.endswith(kept)
    assert LogFile(path).end() == len(text)


def test_a_flood_that_is_faster_than_copying_does_not_keep_a_rotation_from_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "llm.log"
    path.write_bytes(b"x\n" * BLOCK)
    real = os.pread

    def flooded(descriptor: int, length: int, offset: int) -> bytes:
        with path.open("ab") as child:
            child.write(b"y\n" * BLOCK)
        return real(descriptor, length, offset)

    with monkeypatch.context() as patched:
        patched.setattr(logs, "_fallocate", lambda *_: False)
        patched.setattr(logs, "MAX_BYTES", 2 * BLOCK)
        patched.setattr(os, "pread", flooded)
        logs.rotate(path)
    assert logs.size_bytes(path) == 0


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


def ranked(tmp_path: Path, **files: tuple[str, float]) -> Path:
    """The log of a service with rank files: text, and when it fell silent."""
    log = tmp_path / "llm.log"
    for name, (text, silent_s) in files.items():
        path = log if name == "own" else logs.rank_folder(log) / "1" / f"rank.{name[1:]}" / "stdout"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        os.utime(path, (silent_s, silent_s))
    return log


def test_ranks_are_read_in_order_of_who_fell_silent_first(tmp_path: Path) -> None:
    log = ranked(
        tmp_path,
        own=("launcher: a rank died\n", 30.5),
        r0=("up\nconnection closed by peer\n", 30.2),
        r1=("up\nCUDA out of memory\n", 30.1),
    )
    text = b"".join(LogView(log, 0).pieces()).decode()
    assert text.index("CUDA out of memory") < text.index("connection closed") < text.index("launcher")


def test_marks_put_lines_of_ranks_in_order(tmp_path: Path) -> None:
    log = ranked(tmp_path, own=("a\nd\n", 40.0), r0=("b\nc\n", 50.0))
    log_times.add(log, ["mark", 10.0, 2, ""], ["mark", 20.0, 4, "1/rank.0/stdout"], ["mark", 30.0, 4, ""])
    assert b"".join(LogView(log, 0).pieces()) == b"a\nb\nc\nd\n"


def test_a_log_that_somebody_removed_is_told_from_memory(tmp_path: Path) -> None:
    assert list(LogView(tmp_path / "gone.log", 0, lambda: b"last words\n").pieces()) == [b"last words\n"]
    (tmp_path / "there.log").write_text("on disk\n")
    assert list(LogView(tmp_path / "there.log", 0, lambda: b"last words\n").pieces()) == [b"on disk\n"]


def test_rotated_parts_and_other_services_are_no_ranks(tmp_path: Path) -> None:
    log = ranked(tmp_path, own=("x", 1.0), r0=("x", 1.0))
    folder = logs.rank_folder(log)
    for name in ("stdout.rotated", "rank.log.1", "stdout.rotated.tmp"):
        (folder / name).write_text("")
    assert [str(path.relative_to(folder)) for path in logs.rank_files(log)] == ["1/rank.0/stdout"]


def test_a_log_that_grows_faster_than_it_is_read_has_an_end(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"first\n")

    def read(found: Iterator[object]) -> int:
        count = 0
        for count, _ in enumerate(found, 1):
            assert count < 10, "it is read for ever"
            with path.open("ab") as log:
                log.write(b"more\n" * count)
        return count

    assert read(LogFile(path).pieces(0)) == 1
    assert read(Cursor(LogFile(path)).lines()) == 2


def test_what_a_log_said_is_found_however_much_it_says_afterwards(tmp_path: Path) -> None:
    path = tmp_path / "llm.log"
    path.write_text("READY of an earlier attempt\n")
    says = LogSearch(LogView(path, logs.size_bytes(path)))
    assert not says("^READY")
    with path.open("ab") as file:
        file.write(b"READY\n" + b"x" * 99 * 1024 + b"\n" * (3 << 20))
    assert says("^READY$")
    path.write_text("")
    assert says("^READY$"), "it has said so"


def test_a_line_without_an_end_is_searched_too_and_again_with_its_end(tmp_path: Path) -> None:
    path = tmp_path / "llm.log"
    path.write_text("")
    says = LogSearch(LogView(path, 0))
    for text in ("not REA", "DY for", " long, running on ", "8001"):
        assert not says(r"running on \d+$")
        with path.open("a") as file:
            file.write(text)
    assert says(r"running on \d+$")


def test_a_piece_that_ends_within_a_line_is_no_end_of_the_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs.LogFile.read, "__defaults__", (8,))
    path = tmp_path / "llm.log"
    path.write_text("not yetREADYING\nmore\n")  # the second piece begins and ends inside the word
    assert not LogSearch(LogView(path, 0))("^READY|READY$")
    path.write_text("not yet\nREADY\nmore\n")
    assert LogSearch(LogView(path, 0))("^READY$")


def test_a_log_that_somebody_removed_is_searched_in_memory(tmp_path: Path) -> None:
    assert LogSearch(LogView(tmp_path / "gone.log", 0, lambda: b"loading\nREADY\n"))("^READY$")
    assert not LogSearch(LogView(tmp_path / "gone.log", 0))("^READY$")


@given(pieces=st.lists(st.text("RE \n", max_size=6).map(str.encode), max_size=12))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_search_as_it_is_written_finds_what_one_at_the_end_finds(tmp_path: Path, pieces: list[bytes]) -> None:
    path = tmp_path / "llm.log"
    path.write_bytes(b"")
    says, text = LogSearch(LogView(path, 0)), ""
    ever = False
    for piece in pieces:
        with path.open("ab") as file:
            file.write(piece)
        text += piece.decode()
        ever = ever or re.search("^RE", text, re.MULTILINE) is not None
        assert says("^RE") == ever
