from __future__ import annotations

import json
import multiprocessing
import os
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
from filelock import FileLock

from toolkit.errors import ToolkitError
from toolkit.reserve.decide import World
from toolkit.reserve.ledger import Ledger, current_world
from toolkit.reserve.model import GpuClaim, Owner, Request, Totals, owner_is_alive

Spawn = Callable[..., BaseProcess]
NOTHING = Totals()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "ledger.json"


@pytest.fixture
def ledger(path: Path) -> Ledger:
    return Ledger(path)


def test_a_grant_is_seen_by_another_reader_and_gone_after_release(ledger: Ledger, path: Path) -> None:
    grant = ledger.grant(Owner.current("a"), Request(cpus=(0,)), NOTHING, service="llm")
    assert Ledger(path).grants() == (grant,)
    with pytest.raises(ToolkitError, match="CPUs 0 held by deployment 'a'"):
        Ledger(path).grant(Owner.current("b"), Request(cpus=(0,)), NOTHING)
    assert ledger.release(grant)
    assert not ledger.release(grant)
    assert ledger.grants() == ()


def test_all_services_are_held_together_or_not_at_all(ledger: Ledger) -> None:
    mine = ledger.grant_all(Owner.current("a"), {"llm": Request(cpus=(0,)), "embed": Request(ports=(8002,))}, NOTHING)
    assert {service: grant.service for service, grant in mine.items()} == {"llm": "llm", "embed": "embed"}
    with pytest.raises(ToolkitError) as caught:
        ledger.grant_all(Owner.current("b"), {"x": Request(cpus=(1,)), "y": Request(ports=(8002,))}, NOTHING)
    assert caught.value.details["resource"] == "port"
    assert caught.value.details["services"] == ["y"]
    assert caught.value.details["holder"] == {"deployment": "a", "pid": os.getpid(), "service": "embed"}
    assert len(ledger.grants()) == 2
    assert ledger.release_all(Owner.current("a")) == 2


def test_twenty_racing_processes_never_hold_one_thing_twice(path: Path, spawn: Spawn) -> None:
    context = multiprocessing.get_context("fork")
    racers = 20
    ready, tried, results = context.Barrier(racers), context.Barrier(racers), context.SimpleQueue()
    wishes = [
        Request(cpus=(0, 1), ports=(8001,)),
        Request(gpus=(GpuClaim(uuid="GPU-a", memory_bytes=10),), cpus=(1,)),
        Request(gpus=(GpuClaim(uuid="GPU-b", share=True, memory_bytes=40),)),
        Request(ports=(8001, 8002)),
    ]
    totals = Totals(gpu_bytes={"GPU-a": 100, "GPU-b": 100})

    def race(number: int) -> None:
        ready.wait()
        try:
            Ledger(path).grant(Owner.current(f"d{number}"), wishes[number % len(wishes)], totals)
            won = True
        except ToolkitError:
            won = False
        tried.wait()  # every winner lives, and holds, until all have tried
        results.put((number % len(wishes), won))
        os._exit(0)

    children = [spawn(race, number) for number in range(racers)]
    outcome = [results.get() for _ in children]
    for child in children:
        child.join()
        assert child.exitcode == 0
    wins = [sum(won for kind, won in outcome if kind == wish) for wish in range(len(wishes))]
    assert wins[2] == 2  # 40 + 40 of 100 bytes
    assert wins[0] + wins[3] == 1  # port 8001
    assert wins[0] + wins[1] == 1  # CPU 1; the two who want it alone have no other rival for it
    assert Ledger(path).grants() == ()  # all owners are dead now


def test_a_killed_owner_holds_nothing(ledger: Ledger, tmp_path: Path, spawn: Spawn) -> None:
    def hold() -> None:
        grant = ledger.grant(Owner.current("dead"), Request(ports=(8001,)), NOTHING)
        ledger.mark_preloaded(grant)
        (tmp_path / "held").touch()
        time.sleep(600)

    child = spawn(hold)
    while not (tmp_path / "held").exists():
        time.sleep(0.01)
    with pytest.raises(ToolkitError) as caught:
        ledger.grant(Owner.current("next"), Request(ports=(8001,)), NOTHING)
    assert caught.value.details["holder"]["pid"] == child.pid
    child.kill()
    os.waitid(os.P_PID, child.pid or 0, os.WEXITED | os.WNOWAIT)  # dead, though nobody has reaped it
    assert ledger.grant(Owner.current("next"), Request(ports=(8001,)), NOTHING).owner.deployment == "next"


def test_a_pid_that_was_given_away_holds_nothing(ledger: Ledger) -> None:
    me = Owner.current("a")
    ledger.grant(me.model_copy(update={"start_time": me.start_time - 1}), Request(cpus=(0,)), NOTHING)
    assert ledger.grants() == ()


def test_an_owner_in_another_pid_namespace_counts_as_alive() -> None:
    elsewhere = Owner.current("a").model_copy(update={"pid": 1 << 22, "pid_namespace": 1})
    assert owner_is_alive(elsewhere)
    assert not owner_is_alive(elsewhere.model_copy(update={"pid_namespace": None}))


def test_time_runs_by_the_boot_clock_and_the_boot_id(path: Path) -> None:
    now = {"boot": "one", "s": 1000.0}
    ledger = Ledger(path, world=lambda: World(str(now["boot"]), float(now["s"]), lambda _owner: True))
    owner = Owner(pid=1, start_time=1, deployment="a")
    lost = ledger.grant(owner, Request(cpus=(0,)), NOTHING, service="llm", window_s=30)
    kept = ledger.mark_preloaded(ledger.grant(owner, Request(cpus=(1,)), NOTHING, window_s=30))
    slow = ledger.extend(ledger.grant(owner, Request(cpus=(2,)), NOTHING, window_s=30), 60)
    now["s"] = 1030.0
    assert ledger.grants() == (kept, slow)
    assert ledger.extend(kept, 1) == kept
    for call in (ledger.mark_preloaded, lambda grant: ledger.extend(grant, 5)):
        with pytest.raises(ToolkitError, match="ran out before PRELOAD"):
            call(lost)
    now["boot"] = "two"
    now["s"] = 1.0
    assert ledger.grants() == ()


def test_the_moment_of_this_machine_goes_forward() -> None:
    first, second = current_world(), current_world()
    assert first.boot_id == second.boot_id
    assert 0 < first.now_s <= second.now_s


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b'{"schema_version": 1}', b"\0" * 50, b'{"schema_version": 1, "boot_id": "x", "grants": [{}]}'],
)
def test_a_damaged_ledger_is_told_and_never_reset(ledger: Ledger, path: Path, content: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    for _ in range(2):
        with pytest.raises(ToolkitError, match="damaged") as caught:
            ledger.grant(Owner.current("a"), Request(cpus=(0,)), NOTHING)
        assert str(path) in str(caught.value.where)
        assert f"rm {path}" in str(caught.value.hint)
    assert path.read_bytes() == content


def test_a_newer_ledger_is_refused(ledger: Ledger, path: Path) -> None:
    path.parent.mkdir()
    path.write_text(json.dumps({"schema_version": 2}))
    with pytest.raises(ToolkitError, match="newer coexist"):
        ledger.grants()


@pytest.mark.parametrize(("folder", "file"), [(0o700, 0o600), (0o755, 0o644), (0o770, 0o660), (0o777, 0o664)])
def test_the_files_mode_follows_its_folder(ledger: Ledger, path: Path, folder: int, file: int) -> None:
    path.parent.mkdir()
    path.parent.chmod(folder)
    ledger.grant(Owner.current("a"), Request(cpus=(0,)), NOTHING)
    assert path.stat().st_mode & 0o777 == file
    lock = path.with_name("ledger.json.lock")
    assert lock.stat().st_mode & 0o007 == 0


def test_a_stuck_holder_of_the_lock_is_named(path: Path) -> None:
    path.parent.mkdir()
    with FileLock(path.with_name("ledger.json.lock")), pytest.raises(ToolkitError) as caught:
        Ledger(path, lock_timeout_s=0.0).grants()
    assert f"process {os.getpid()} has held the lock" in caught.value.what


def test_a_kept_grant_follows_its_process_to_the_next_owner(path: Path) -> None:
    living: set[int] = {1, 7}
    boot = current_world().boot_id
    ledger = Ledger(path, lambda: World(boot, 1.0, lambda owner: owner.pid in living))
    first, second = (Owner(pid=pid, start_time=pid, deployment="a") for pid in (1, 2))
    process = Owner(pid=7, start_time=70, deployment="a")
    granted = ledger.grant_all(first, {"llm": Request(cpus=(0,)), "embed": Request(cpus=(1,))}, NOTHING)
    kept = ledger.keep(granted["llm"], process)
    assert (kept.kept_by, kept.deadline_s) == (process, None)
    living.remove(1)
    assert ledger.grants() == (kept,), "no gap: it is held while nobody supervises"
    living.add(2)
    taken = ledger.take_over(second, {(7, 70)})
    assert taken == {"llm": kept.model_copy(update={"owner": second})}
    assert ledger.grants() == tuple(taken.values())
    assert ledger.take_over(second, {(7, 70)}) == {}
    assert ledger.release_all(second) == 0, "an owner that gives up leaves it to the process"
    living.remove(7)
    assert ledger.release_all(second) == 1


def test_a_grant_that_ran_out_cannot_be_kept(ledger: Ledger) -> None:
    grant = ledger.grant(Owner.current("a"), Request(cpus=(0,)), NOTHING, service="llm")
    ledger.release(grant)
    with pytest.raises(ToolkitError, match="ran out"):
        ledger.keep(grant, Owner.current("a"))


def test_old_and_new_of_a_service_are_held_until_the_old_one_is_released(ledger: Ledger) -> None:
    me = Owner.current("a")
    old = ledger.grant_all(me, {"llm": Request(cpus=(0, 1))}, NOTHING)["llm"]
    new = ledger.grant_all(me, {"llm": Request(cpus=(1, 2))}, NOTHING, replaced=[old])["llm"]
    assert {grant.id for grant in ledger.grants()} == {old.id, new.id}
    assert ledger.release(old)
    assert ledger.grants() == (new,)
