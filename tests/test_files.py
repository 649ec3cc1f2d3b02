from __future__ import annotations

import errno
import os
import resource
import signal
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.store.conftest import names
from toolkit import files
from toolkit.errors import ToolkitError
from toolkit.files import disk_errors, json_object, parsed_object, read_json, write_atomic


def test_a_file_is_replaced_with_the_mode_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.write_text("old")
    old_mask = os.umask(0o077)
    try:
        write_atomic(path, "new", mode=0o644)
    finally:
        os.umask(old_mask)
    assert path.read_text() == "new"
    assert path.stat().st_mode & 0o777 == 0o644
    write_atomic(path, b"secret")
    assert path.stat().st_mode & 0o777 == 0o600


def test_nothing_but_the_file_is_left_in_the_folder(tmp_path: Path) -> None:
    write_atomic(tmp_path / "a", "1")
    assert names(tmp_path) == ["a"]


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a"
    path.write_text("old")

    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(ToolkitError, match="no space is left on the disk; at least 3 B are needed") as caught:
        write_atomic(path, "new")
    assert caught.value.details["needed"] == 3
    assert path.read_text() == "old"
    assert names(tmp_path) == ["a"]


def test_a_file_size_limit_is_told_with_its_cure(tmp_path: Path, spawn: Callable[..., BaseProcess]) -> None:
    def child() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        try:
            write_atomic(tmp_path / "a", b"x" * 2000)
        except ToolkitError as error:
            (tmp_path / "said").write_text(str(error))
            os._exit(0)
        os._exit(1)

    process = spawn(child)
    process.join()
    assert process.exitcode == 0
    said = (tmp_path / "said").read_text()
    assert "file size limit; at least 2.0 KiB are needed" in said
    assert "ulimit -f" in said
    assert names(tmp_path) == ["said"]


def test_kill_during_a_write_leaves_the_old_content(tmp_path: Path, spawn: Callable[..., BaseProcess]) -> None:
    path = tmp_path / "a"
    path.write_text("old")

    def child() -> None:
        files.os.fsync = lambda _fd: os.kill(os.getpid(), signal.SIGKILL)
        write_atomic(path, "new")

    process = spawn(child)
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert path.read_text() == "old"


@given(code=st.sampled_from([errno.ENOENT, errno.EPIPE, errno.ECONNREFUSED, errno.EIO]))
def test_errors_that_no_person_can_cure_pass_unchanged(code: int) -> None:
    with pytest.raises(OSError) as caught, disk_errors(Path("/tmp"), "cannot"):
        raise OSError(code, "x")
    assert caught.value.errno == code


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES, errno.EPERM])
def test_a_closed_place_is_named_with_what_to_do(tmp_path: Path, code: int) -> None:
    with pytest.raises(ToolkitError) as caught, disk_errors(tmp_path, "cannot write 'x'"):
        raise OSError(code, "x", str(tmp_path / "deep" / "x"))
    assert caught.value.where == str(tmp_path / "deep" / "x")
    assert "Give yourself access" in str(caught.value.hint)


def test_json_faults_name_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{\n"a": ,\n}')
    with pytest.raises(ToolkitError) as caught:
        read_json(path, hint="Do this.")
    assert caught.value.where == f"{path}:2"
    assert caught.value.hint == "Do this."


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00", b"[" * 100_000, b"\0" * 10])
def test_no_damaged_json_is_more_than_a_clear_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(content)
    with pytest.raises(ToolkitError, match="damaged"):
        read_json(path)


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00", b"[" * 100_000, b"[]", b"null"])
def test_what_is_no_json_object_is_none(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(content)
    assert json_object(path) is None
    assert parsed_object(content) is None


def test_a_json_object_is_read_and_what_cannot_be_read_is_none(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"a": 1}')
    os.mkfifo(tmp_path / "pipe")
    assert json_object(tmp_path / "a.json") == {"a": 1}
    assert all(json_object(path) is None for path in (tmp_path, tmp_path / "none", tmp_path / "pipe"))


def test_a_missing_file_is_the_default_or_an_error(tmp_path: Path) -> None:
    assert read_json(tmp_path / "none", default=None) is None
    with pytest.raises(ToolkitError, match="missing"):
        read_json(tmp_path / "none")
