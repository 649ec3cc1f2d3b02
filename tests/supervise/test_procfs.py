from __future__ import annotations

import os
from pathlib import Path

from toolkit.supervise import procfs
from toolkit.supervise.procfs import Identity, Stat


def fake_process(proc: Path, pid: int, name: str, environ: bytes = b"") -> None:
    (proc / str(pid)).mkdir()
    fields = ["S", "1", "5", "77"] + ["0"] * 7 + ["200", "100"] + ["0"] * 6 + ["4711", "0", "3"]
    (proc / str(pid) / "stat").write_text(f"{pid} ({name}) {' '.join(fields)}\n")
    (proc / str(pid) / "environ").write_bytes(environ)


def test_a_name_with_spaces_and_parentheses_is_read_right(tmp_path: Path) -> None:
    fake_process(tmp_path, 12, "a) R 9 (b")
    found = procfs.stat(12, tmp_path)
    assert found is not None
    assert (found.name, found.state, found.ppid, found.session) == ("a) R 9 (b", "S", 1, 77)
    assert found.identity == Identity(12, 4711)
    assert found.cpu_s == 300 / os.sysconf("SC_CLK_TCK")
    assert found.resident_bytes == 3 * os.sysconf("SC_PAGE_SIZE")


def test_an_empty_environment_is_not_a_known_one(tmp_path: Path) -> None:
    fake_process(tmp_path, 12, "x")
    assert procfs.environment(12, tmp_path) is None
    assert procfs.environment(13, tmp_path) == []
    assert not procfs.has_cookie(12, "A=b", tmp_path)


def test_this_process_is_no_kernel_thread() -> None:
    found = procfs.stat(os.getpid())
    assert found is not None
    assert not found.kernel


def test_a_process_that_is_gone_is_not_there(tmp_path: Path) -> None:
    assert procfs.stat(99, tmp_path) is None
    assert procfs.children(99, tmp_path) == []
    assert not procfs.has_cookie(99, "A=b", tmp_path)


def test_a_cookie_counts_only_as_a_whole_variable(tmp_path: Path) -> None:
    fake_process(tmp_path, 12, "x", b"PATH=/bin\0COOKIE=abc\0")
    assert procfs.has_cookie(12, "COOKIE=abc", tmp_path)
    assert not procfs.has_cookie(12, "COOKIE=ab", tmp_path)
    assert not procfs.has_cookie(12, "OOKIE=abc", tmp_path)


def test_only_processes_are_listed(tmp_path: Path) -> None:
    fake_process(tmp_path, 12, "x")
    (tmp_path / "meminfo").write_text("")
    assert procfs.pids(tmp_path) == [12]


def test_a_closure_holds_roots_and_all_below_even_in_a_circle() -> None:
    found = [
        Stat(Identity(pid, 0), "x", "S", ppid, 0, 0.0, 0) for pid, ppid in [(2, 1), (3, 2), (4, 3), (9, 8), (1, 4)]
    ]
    assert procfs.closure([2], found) == {1, 2, 3, 4}
