from __future__ import annotations

import dataclasses
import fcntl
import os
import subprocess
import sys
from pathlib import Path

from toolkit.store.process import ProcessId, is_alive, lock_holder, start_time, this_process


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
    fields = " ".join(["S", "1", *["0"] * 17, "4242", "0"])
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
