from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from toolkit import processes
from toolkit.affinity.check import verify
from toolkit.affinity.launch import wrap

CPU = max(os.sched_getaffinity(0))
# Three sleeping threads and one child; says its child's pid when all are there.
SERVER = """
import subprocess, sys, threading
started = threading.Barrier(4)
def wait():
    started.wait()
    threading.Event().wait()
for _ in range(3):
    threading.Thread(target=wait, daemon=True).start()
started.wait()
child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
print(child.pid, flush=True)
input()
"""


@pytest.fixture
def server() -> Iterator[tuple[int, int]]:
    argv = wrap([sys.executable, "-c", SERVER], (CPU,))
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.pid, int(process.stdout.readline())
        process.communicate("\n")


def test_every_thread_of_a_pinned_tree_is_on_plan(server: tuple[int, int]) -> None:
    pid, child = server
    assert processes.tree([pid]) == tuple(sorted((pid, child)))
    report = verify(processes.tree([pid]), (CPU,))
    assert report.threads == 5
    assert report.on_plan_percent == 100.0
    assert report.drifting == report.unseen == ()


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one CPU leaves nowhere to drift to")
def test_a_thread_that_drifts_is_named(server: tuple[int, int]) -> None:
    pid, child = server
    tid = max(int(task.name) for task in Path(f"/proc/{pid}/task").iterdir())
    os.sched_setaffinity(tid, os.sched_getaffinity(0))
    report = verify((pid, child), (CPU,))
    assert report.on_plan_percent == 80.0
    (thread,) = report.drifting
    assert (thread.pid, thread.tid) == (pid, tid)
    assert thread.cpus == tuple(sorted(os.sched_getaffinity(0)))
    assert f"(pid {pid}, thread {tid}) may run on" in str(thread)


def write(proc: Path, pid: int, tid: int, cpus: str, state: str = "S (sleeping)", name: str = "worker") -> None:
    task = proc / str(pid) / "task" / str(tid)
    task.mkdir(parents=True)
    status = f"Name:\t{name}\nState:\t{state}\nCpus_allowed:\tf\nCpus_allowed_list:\t{cpus}\nMems_allowed_list:\t0\n"
    (task / "status").write_text(status)


def test_a_thread_pinned_to_a_part_of_the_plan_is_on_it(tmp_path: Path) -> None:
    write(tmp_path, 1, 1, "0-3")
    write(tmp_path, 1, 2, "2")
    write(tmp_path, 1, 3, "2,8", name="a: b")
    report = verify([1], range(4), tmp_path)
    assert [(thread.tid, thread.name, thread.cpus) for thread in report.drifting] == [(3, "a: b", (2, 8))]
    assert report.on_plan_percent == pytest.approx(200 / 3)


def test_processes_that_are_gone_are_unseen_and_zombies_do_not_count(tmp_path: Path) -> None:
    write(tmp_path, 1, 1, "0")
    write(tmp_path, 2, 2, "0-7", state="Z (zombie)")
    (tmp_path / "1" / "task" / "9").mkdir()
    report = verify([1, 2, 3], (0,), tmp_path)
    assert (report.threads, report.drifting, report.unseen) == (1, (), (2, 3))


def test_nothing_seen_is_no_hundred_percent(tmp_path: Path) -> None:
    assert verify([1], (0,), tmp_path).on_plan_percent is None
