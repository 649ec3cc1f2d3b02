"""What the machine shows of an attempt that ended or stalls."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from toolkit import processes
from toolkit.host.gpu_use import DeviceUse
from toolkit.host.model import Holder
from toolkit.supervise.outcome import COMPILERS, OomCount, is_compiling, others


def test_kills_are_counted_from_the_beginning_of_the_attempt(tmp_path: Path) -> None:
    events = tmp_path / "memory.events"
    events.write_text("low 0\noom 3\noom_kill 2\noom_group_kill 0\n")
    count = OomCount(tmp_path, 2)
    assert count.grew() is False
    events.write_text("low 0\noom 4\noom_kill 3\noom_group_kill 0\n")
    assert count.grew() is True


def test_a_group_that_tells_nothing_leaves_it_open(tmp_path: Path) -> None:
    assert OomCount(tmp_path, None).grew() is None
    assert OomCount(tmp_path, 2).grew() is None
    assert OomCount(None, None).grew() is None
    assert OomCount.begun(os.getpid(), tmp_path, tmp_path) == OomCount(None, None)


@pytest.mark.parametrize("name", sorted(COMPILERS))
def test_a_compiler_in_the_tree_is_seen_by_its_name(tmp_path: Path, name: str) -> None:
    program = tmp_path / name
    shutil.copy(shutil.which("sleep") or "/bin/sleep", program)
    process = subprocess.Popen([str(program), "60"])
    try:
        member = processes.stat(process.pid)
        assert member is not None
        assert is_compiling([member.identity])
        assert not is_compiling([processes.Identity(os.getpid(), 0)])
    finally:
        process.kill()
        process.wait()
    assert not is_compiling([member.identity])


def test_others_are_those_without_the_cookie_of_the_deployment(tmp_path: Path) -> None:
    for pid, environ in ((1, b"A=1\0COEXIST_COOKIE=abc.llm.1\0"), (2, b"COEXIST_COOKIE=xyz.llm.1\0")):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "environ").write_bytes(environ)
    mine, foreign, unseen = (Holder(pid=pid, name="python3", used_bytes=7) for pid in (1, 2, None))
    use = DeviceUse("GPU-1", 0, 100, 50, (mine, foreign, unseen))
    elsewhere = DeviceUse("GPU-2", 1, 100, 50, (foreign,))
    assert others({"GPU-1"}, (use, elsewhere), "COEXIST_COOKIE=abc.", tmp_path) == (foreign, unseen)
