from __future__ import annotations

import dataclasses
import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from toolkit import processes
from toolkit.processes import Identity, ProcessId, Stat, is_alive, lock_holder, start_time, this_process


def fake_process(proc: Path, pid: int, name: str, environ: bytes = b"") -> None:
    (proc / str(pid)).mkdir()
    fields = ["S", "1", "5", "77"] + ["0"] * 7 + ["200", "100"] + ["0"] * 6 + ["4711", "0", "3"]
    (proc / str(pid) / "stat").write_text(f"{pid} ({name}) {' '.join(fields)}\n")
    (proc / str(pid) / "environ").write_bytes(environ)


def test_a_name_with_spaces_and_parentheses_is_read_right(tmp_path: Path) -> None:
    fake_process(tmp_path, 12, "a) R 9 (b")
    found = processes.stat(12, tmp_path)
    assert found is not None
    assert (found.name, found.state, found.ppid, found.session) == ("a) R 9 (b", "S", 1, 77)
    assert found.identity == Identity(12, 4711)
    assert found.cpu_s == 300 / os.sysconf("SC_CLK_TCK")
    assert found.resident_bytes == 3 * os.sysconf("SC_PAGE_SIZE")


def test_an_empty_environment_is_not_a_known_one(tmp_path: Path) -> None:
    fake_process(tmp_path, 12, "x")
    assert processes.environment(12, tmp_path) is None
    assert processes.environment(13, tmp_path) == []
    assert not processes.has_cookie(12, "A=b", tmp_path)


def test_this_process_is_no_kernel_thread() -> None:
    found = processes.stat(os.getpid())
    assert found is not None
    assert not found.kernel


def test_a_process_that_is_gone_is_not_there(tmp_path: Path) -> None:
    assert processes.stat(99, tmp_path) is None
    assert processes.children(99, tmp_path) == []
    assert not processes.has_cookie(99, "A=b", tmp_path)


def test_a_cookie_counts_only_as_a_whole_variable(tmp_path: Path) -> None:
    fake_process(tmp_path, 12, "x", b"PATH=/bin\0COOKIE=abc\0")
    assert processes.has_cookie(12, "COOKIE=abc", tmp_path)
    assert not processes.has_cookie(12, "COOKIE=ab", tmp_path)
    assert not processes.has_cookie(12, "OOKIE=abc", tmp_path)


def test_only_processes_are_listed(tmp_path: Path) -> None:
    fake_process(tmp_path, 12, "x")
    (tmp_path / "meminfo").write_text("")
    assert processes.pids(tmp_path) == [12]


def test_a_closure_holds_roots_and_all_below_even_in_a_circle() -> None:
    found = [
        Stat(Identity(pid, 0), "x", "S", ppid, 0, 0.0, 0) for pid, ppid in [(2, 1), (3, 2), (4, 3), (9, 8), (1, 4)]
    ]
    assert processes.closure([2], found) == {1, 2, 3, 4}


def test_a_tree_is_followed_by_parents_whatever_the_names(tmp_path: Path) -> None:
    for pid, parent, name in ((1, 0, "init"), (5, 1, "a) S 1 ("), (6, 5, "b"), (7, 6, "c"), (8, 1, "other")):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_text(f"{pid} ({name}) S {parent} {' '.join('0' * 20)}\n")
    (tmp_path / "9").mkdir()
    assert processes.tree([5], tmp_path) == (5, 6, 7)
    assert processes.tree([5, 99], tmp_path) == (5, 6, 7, 99)


def test_this_process_is_alive() -> None:
    assert is_alive(this_process()) is True


def test_a_pid_given_away_to_another_process_is_not_the_old_one() -> None:
    me = this_process()
    assert is_alive(dataclasses.replace(me, start_time=me.start_time - 1)) is False


def test_nothing_of_an_earlier_boot_is_alive() -> None:
    assert is_alive(dataclasses.replace(this_process(), boot_id="another")) is False


def test_a_process_of_another_pid_namespace_is_neither_alive_nor_dead() -> None:
    me = this_process()
    assert is_alive(dataclasses.replace(me, pid_namespace=me.pid_namespace + 1)) is None


def test_a_zombie_is_dead() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    me = this_process()
    owner = ProcessId(child.pid, start_time(child.pid) or 0, me.boot_id, me.pid_namespace)
    assert is_alive(owner) is True
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert Path(f"/proc/{child.pid}/stat").exists()
    assert is_alive(owner) is False
    child.wait()


def test_a_name_with_parentheses_and_spaces_does_not_shift_the_fields(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    fields = " ".join(["S", "1", *["0"] * 17, "4242", "0", "0"])
    (tmp_path / "7" / "stat").write_text(f"7 (a) b (c) {fields}\n")
    assert start_time(7, tmp_path) == 4242


def test_the_holder_of_a_lock_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    with path.open("w") as file:
        assert lock_holder(path) is None
        fcntl.flock(file, fcntl.LOCK_EX)
        assert lock_holder(path) == os.getpid()


def test_a_waiter_is_not_taken_for_the_holder(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    path.touch()
    status = path.stat()
    inode = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    locks = [f"1: -> FLOCK  ADVISORY  WRITE 12 {inode} 0 EOF", f"1: FLOCK  ADVISORY  READ  13 {inode} 0 EOF"]
    (tmp_path / "locks").write_text("\n".join(locks) + "\n")
    assert lock_holder(path, tmp_path) is None


def test_a_process_that_proc_hides_is_neither_alive_nor_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int, number: int) -> None:
        raise PermissionError

    hidden = dataclasses.replace(this_process(), pid=1 << 22)
    assert processes.is_alive(hidden) is False
    monkeypatch.setattr(processes.os, "kill", refuse)
    assert processes.is_alive(hidden) is None
