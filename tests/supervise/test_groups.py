from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.supervise.conftest import RUN, carriers, mark, until
from toolkit.host import cgroup
from toolkit.processes import PROC
from toolkit.supervise import process
from toolkit.supervise.groups import SYSFS, Group, Groups
from toolkit.supervise.outcome import OomCount
from toolkit.supervise.process import Tree

HIDES = (
    "import os, subprocess, sys, time;"
    "child = [sys.executable, '-I', '-S', '-c', 'import time; time.sleep(600)'];"
    "subprocess.Popen(child, env={{}}, start_new_session=True);"
    "print('hidden', flush=True);"
    "{then}"
)


def fake(root: Path, mount: str = "/sys/fs/cgroup", path: str = "/user.slice/app") -> tuple[Path, Path]:
    """sysfs and proc of a host whose control groups are plain files below ``root``."""
    sysfs, proc = root / "sys", root / "proc"
    own = sysfs / "fs/cgroup" / path.lstrip("/")
    own.mkdir(parents=True)
    (own / "cgroup.procs").write_text(f"{os.getpid()}\n")
    (proc / "self").mkdir(parents=True)
    (proc / str(os.getpid())).mkdir()
    (proc / "self/mountinfo").write_text(f"30 23 0:26 / {mount} rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n")
    (proc / str(os.getpid()) / "cgroup").write_text(f"0::{path}\n")
    return sysfs, proc


def with_kill(own: Path, cookie: str) -> Path:
    folder = own / f"coexist-{cookie}"
    folder.mkdir()
    (folder / "cgroup.kill").touch()
    return folder


def test_a_deployments_group_is_made_below_our_own(tmp_path: Path) -> None:
    sysfs, proc = fake(tmp_path)
    folder = with_kill(sysfs / "fs/cgroup/user.slice/app", "c0ffee")
    assert Groups.find("c0ffee", sysfs, proc) == Groups(folder)


def test_there_is_none_without_cgroup_2_without_the_right_or_without_kill(tmp_path: Path) -> None:
    sysfs, proc = fake(tmp_path)
    own = sysfs / "fs/cgroup/user.slice/app"
    assert Groups.find("old", sysfs, proc) is None, "a kernel whose groups have no cgroup.kill"
    assert not (own / "coexist-old").exists()
    (own / "cgroup.procs").unlink()
    assert Groups.find("closed", sysfs, proc) is None
    (proc / "self/mountinfo").write_text("31 23 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n")
    assert Groups.find("first", sysfs, proc) is None


def test_a_group_is_killed_whole_and_others_are_spared(tmp_path: Path) -> None:
    groups = Groups(tmp_path / "coexist-c")
    for name in ("web.1", "llm.3"):
        (tmp_path / "coexist-c" / name).mkdir(parents=True)
    groups.kill(spared=["llm.3"])
    assert (tmp_path / "coexist-c/web.1/cgroup.kill").read_text() == "1"
    assert not (tmp_path / "coexist-c/llm.3/cgroup.kill").exists()


def test_only_a_group_of_our_own_making_is_taken_over(tmp_path: Path) -> None:
    (tmp_path / "coexist-c").mkdir()
    assert Groups.left(str(tmp_path / "coexist-c"), "c") == Groups(tmp_path / "coexist-c")
    assert Groups.left(str(tmp_path), "c") is None, "a file that was tampered with names no group of others"
    assert Groups.left(str(tmp_path / "coexist-d"), "d") is None
    assert Groups.left(None, "c") is None


def test_kills_for_want_of_memory_are_counted_in_the_attempts_own_group(tmp_path: Path) -> None:
    own = tmp_path / "web.1"
    own.mkdir()
    (own / "memory.events").write_text("oom_kill 0\n")
    count = OomCount.begun(os.getpid(), group=own)
    assert (count.folder, count.own) == (own, True)
    (own / "memory.events").write_text("oom_kill 1\n")
    assert count.grew() is True


def test_a_group_that_counts_no_memory_leaves_the_count_to_the_one_above(tmp_path: Path) -> None:
    sysfs, proc = fake(tmp_path)
    parent = sysfs / "fs/cgroup/user.slice/app"
    (parent / "memory.events").write_text("oom_kill 4\n")
    (parent / "web.1").mkdir()
    (proc / "77").mkdir()
    (proc / "77/cgroup").write_text("0::/user.slice/app/web.1\n")
    count = OomCount.begun(77, sysfs, proc, group=parent / "web.1")
    assert (count.folder, count.before, count.own) == (parent, 4, False)


# What follows needs a host where we may make groups.


@pytest.fixture
def groups() -> Iterator[Groups]:
    process.become_subreaper()
    found = Groups.find(f"test{RUN}")
    if found is None:
        pytest.skip("no control group of version 2 may be made here")
    yield found
    found.kill()
    found.close()
    assert not found.folder.exists()


def spawn(groups: Groups, log: Path, script: str, who: str) -> Tree:
    argv = (sys.executable, "-I", "-S", "-c", script)
    return Tree.spawn(argv, {"WHO": mark(who)}, None, log, f"test{RUN}.{who}.1", group=groups.make(f"{who}.1"))


async def test_a_process_begins_inside_its_group(tmp_path: Path, groups: Groups) -> None:
    tree = spawn(groups, tmp_path / "log", "import time; time.sleep(600)", "inside")
    assert tree.group == Group(groups.folder / "inside.1")
    assert cgroup.unified_folder(SYSFS, PROC, tree.pid) == groups.folder / "inside.1"
    assert await tree.stop(grace_s=5.0) == []
    assert not (groups.folder / "inside.1").exists()


@pytest.mark.parametrize("then", ["time.sleep(600)", "pass"])
async def test_what_hid_session_parent_and_cookie_is_killed_with_its_group(
    tmp_path: Path, groups: Groups, then: str
) -> None:
    tree = spawn(groups, tmp_path / "log", HIDES.format(then=then), "hidden")
    await until(lambda: "hidden" in (tmp_path / "log").read_text())
    if then == "pass":
        await tree.wait_exit()
    hidden = groups.of("hidden.1").members() - {tree.pid}
    assert len(hidden) == 1
    assert {member.pid for member in tree.members()} >= hidden
    await tree.kill()
    assert carriers("hidden") == []
    assert not any(Path(f"/proc/{pid}").exists() for pid in hidden)


async def test_groups_that_a_program_made_below_its_own_are_removed_too(tmp_path: Path, groups: Groups) -> None:
    inner = str(groups.folder / "nest.1/inner")
    script = f"import os, time; os.mkdir({inner!r}); print('made', flush=True); time.sleep(600)"
    tree = spawn(groups, tmp_path / "log", script, "nest")
    await until(lambda: "made" in (tmp_path / "log").read_text())
    await tree.kill()
    assert not (groups.folder / "nest.1").exists()


def test_nothing_outside_is_touched_by_a_group_that_is_killed(groups: Groups) -> None:
    with subprocess.Popen([sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)"]) as other:
        groups.make("empty.1")
        groups.kill()
        assert other.poll() is None
        other.send_signal(signal.SIGKILL)
