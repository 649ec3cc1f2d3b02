from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.supervise.conftest import carriers, service_of, state_of, tiny, until
from toolkit import processes
from toolkit.processes import Identity
from toolkit.supervise import ranks
from toolkit.supervise.lifecycle import Failure
from toolkit.supervise.ranks import Death, Member, Rank, choose, exit_status, find, first_death

Start = Callable[..., Any]
Children = Callable[..., "subprocess.Popen[bytes]"]
ROOT = 100


def member(pid: int, ppid: int = ROOT, executable: str | None = "/bin/server", **facts: Any) -> Member:
    return Member(Identity(pid, pid), ppid, facts.pop("name", "server"), executable, **facts)


def chosen(*members: Member, gpu_pids: tuple[int, ...] = ()) -> dict[int, tuple[str, bool]]:
    found = choose(ROOT, [member(ROOT, 1, "/bin/mpirun"), *members], gpu_pids)
    return {each.identity.pid: (each.label, each.sure) for each in found}


def test_the_processes_of_a_launcher_that_carry_a_rank_are_ranks() -> None:
    found = chosen(member(1, rank="0"), member(2, rank="1"))
    assert found == {1: ("rank 0", True), 2: ("rank 1", True)}


def test_what_a_rank_starts_inherits_its_number_and_is_no_rank() -> None:
    assert chosen(member(1, rank="0"), member(3, 1, "/usr/bin/nvcc", rank="0")) == {1: ("rank 0", True)}


def test_a_helper_of_a_rank_that_lost_its_parent_is_no_rank() -> None:
    assert chosen(member(5, rank="0"), member(9, 1, "/bin/helper", rank="0")) == {5: ("rank 0", True)}


def test_a_rank_that_the_root_carries_too_makes_no_ranks() -> None:
    root = member(ROOT, 1, "/bin/a", rank="0")
    assert choose(ROOT, [root, member(2, executable="/bin/b", rank="0")]) == ()


def test_who_holds_a_gpu_counts_whatever_it_runs() -> None:
    assert chosen(member(1, executable="/bin/x", name="x"), gpu_pids=(1, 7)) == {1: ("GPU process 'x'", True)}


def test_workers_by_looks_run_what_the_root_or_a_sibling_runs() -> None:
    found = chosen(member(1), member(2), member(3, executable="/bin/mpirun"), member(4, executable="/bin/tail"))
    assert found == dict.fromkeys((1, 2, 3), ("worker 'server'", False))


def test_compilers_and_known_helpers_never_count() -> None:
    like_root = {"executable": "/bin/mpirun"}
    assert chosen(member(1, name="nvcc", **like_root), gpu_pids=(1,)) == {}
    for helper in ranks.HELPERS:
        assert chosen(member(1, command=f"python -c from {helper} import main", **like_root)) == {}


def test_a_process_whose_program_cannot_be_read_is_no_worker() -> None:
    assert chosen(member(1, executable=None), member(2, executable=None)) == {}


@pytest.mark.parametrize(
    ("status", "words"),
    [(-9, "signal 9"), (3, "exit status 3"), (0, "exit status 0"), (None, "it is gone")],
)
def test_a_death_in_words(status: int | None, words: str) -> None:
    assert str(Death(Rank(member(12), "rank 1", True), status)) == f"rank 1 (pid 12) died: {words}"


# With real processes.

SLEEP = [sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)"]


@pytest.fixture
def child() -> Iterator[Children]:
    started: list[subprocess.Popen[bytes]] = []

    def start(**environment: str) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen(SLEEP, env=environment))
        return started[-1]

    yield start
    for each in started:
        each.kill()
        each.wait()


def rank_of(process: subprocess.Popen[bytes], sure: bool = True) -> Rank:
    (found,) = find(os.getpid(), [process.pid]) or (None,)
    seen = found.member if found else ranks._member(process.pid, processes.PROC)
    assert seen is not None
    return Rank(seen, f"rank {seen.rank}", sure)


def test_the_first_variable_that_tells_a_number_counts(child: Children) -> None:
    process = child(RANK="7", LOCAL_RANK="3", PMI_RANK="", OMPI_COMM_WORLD_RANK="x")
    asyncio.run(until(lambda: ranks._member(process.pid, processes.PROC).rank == "7"))  # type: ignore[union-attr]


def test_how_it_ended_is_read_from_a_zombie_by_anybody(child: Children) -> None:
    process = child()
    identity = rank_of(process).identity
    process.kill()
    asyncio.run(until(lambda: exit_status(identity, None) == -signal.SIGKILL))


def test_how_it_ended_is_known_after_its_parent_was_faster(child: Children) -> None:
    process = child()
    identity, descriptor = rank_of(process).identity, os.pidfd_open(process.pid)
    process.kill()
    process.wait()
    found = exit_status(identity, descriptor)
    os.close(descriptor)
    assert found in (-signal.SIGKILL, None)  # None: a kernel before 6.15


async def test_the_death_of_a_rank_is_told_at_once(child: Children) -> None:
    process = child()
    waiting = asyncio.create_task(first_death([rank_of(process)], lambda _: None))
    await asyncio.sleep(0)
    process.kill()
    death = await asyncio.wait_for(waiting, 10)
    assert (death.rank.identity.pid, death.exit_status) == (process.pid, -signal.SIGKILL)


async def test_without_pidfds_it_is_told_too(child: Children, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: int) -> int:
        raise OSError

    monkeypatch.setattr(os, "pidfd_open", refuse)
    monkeypatch.setattr(ranks, "_POLL_S", 0.01)
    process = child()
    rank = rank_of(process)
    process.kill()
    assert (await asyncio.wait_for(first_death([rank], lambda _: None), 10)).exit_status == -signal.SIGKILL


@pytest.mark.parametrize(("signum", "replaced"), [(signal.SIGTERM, False), (signal.SIGKILL, True)])
async def test_a_worker_that_was_let_go_or_replaced_ends_nothing(child: Children, signum: int, replaced: bool) -> None:
    worker, other = child(), child()
    told: list[str] = []
    watching = [rank_of(worker, sure=False), rank_of(other, sure=True)]
    waiting = asyncio.create_task(first_death(watching, told.append, replaced_within_s=0.05))
    await asyncio.sleep(0.02)
    if replaced:
        child()
    worker.send_signal(signum)
    await until(lambda: told)
    other.kill()
    assert (await asyncio.wait_for(waiting, 10)).rank.identity.pid == other.pid
    assert told[0].endswith(f"died: signal {int(signum)}; it goes on without it")


async def test_a_killed_worker_that_nobody_replaces_ends_it(child: Children) -> None:
    worker = child()
    waiting = asyncio.create_task(first_death([rank_of(worker, sure=False)], lambda _: None, replaced_within_s=0.01))
    await asyncio.sleep(0.02)
    worker.kill()
    assert (await asyncio.wait_for(waiting, 10)).exit_status == -signal.SIGKILL


async def test_no_descriptor_is_left_when_the_watch_ends(child: Children) -> None:
    watched = [rank_of(child()) for _ in range(3)]
    before = descriptors()
    waiting = asyncio.create_task(first_death(watched, lambda _: None))
    await asyncio.sleep(0.02)
    while_watching = descriptors()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert (while_watching, descriptors()) == (before + 3, before)


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


# With a supervisor.


def ranks_below(name: str) -> dict[str, int]:
    """The pids of a launcher's ranks by number."""
    found = {}
    for pid in carriers(name):
        for variable in processes.environment(pid) or ():
            if variable.startswith(b"OMPI_COMM_WORLD_RANK="):
                found[variable.partition(b"=")[2].decode()] = pid
    return found


async def test_a_dead_rank_behind_a_living_front_end_ends_the_attempt(running: Start) -> None:
    supervisor = await running(tiny("ranked", "ranks"))
    await supervisor.wait_ready(20.0)
    victim = ranks_below("ranked")["1"]
    os.kill(victim, signal.SIGKILL)
    await until(lambda: service_of(supervisor, "ranked")["attempt"] == 2)
    failure = service_of(supervisor, "ranked")["last_failure"]
    assert failure["summary"].startswith(f"rank 1 (pid {victim}) died: signal 9")
    await until(lambda: state_of(supervisor, "ranked") == "SERVING")
    assert victim not in ranks_below("ranked").values()


async def test_the_rank_is_the_reason_when_its_launcher_ends_too(running: Start) -> None:
    supervisor = await running(tiny("aborted", "ranks", "abort-with-rank"))
    await supervisor.wait_ready(20.0)
    victim = ranks_below("aborted")["0"]
    os.kill(victim, signal.SIGKILL)
    await until(lambda: service_of(supervisor, "aborted")["attempt"] == 2)
    assert service_of(supervisor, "aborted")["last_failure"]["summary"].startswith(f"rank 0 (pid {victim}) died")


async def test_helpers_that_come_and_go_end_nothing(running: Start) -> None:
    supervisor = await running(tiny("busy", "helpers"), watch_s=0.05)
    await supervisor.wait_ready(20.0)
    await asyncio.sleep(0.5)
    assert (state_of(supervisor, "busy"), service_of(supervisor, "busy")["attempt"]) == ("SERVING", 1)


async def test_the_diagnosis_of_the_logs_says_why_a_rank_died(running: Start) -> None:
    oom = Failure("CUDA ran out of memory", "stop", "gpu_oom")
    supervisor = await running(tiny("why", "ranks"), diagnose=lambda _: oom)
    await supervisor.wait_ready(20.0)
    os.kill(ranks_below("why")["0"], signal.SIGKILL)
    await until(lambda: state_of(supervisor, "why") == "FAILED")
    failure = service_of(supervisor, "why")["last_failure"]
    assert failure["class"] == "gpu_oom"
    assert failure["summary"].endswith("died: signal 9: CUDA ran out of memory")
