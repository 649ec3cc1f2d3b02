from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from tests.supervise.conftest import supervise, tiny, until
from toolkit.assemble import reservation
from toolkit.assemble.reservation import Reservation, tended
from toolkit.errors import ToolkitError
from toolkit.host.gpu_use import DeviceUse
from toolkit.host.model import Holder
from toolkit.processes import Identity
from toolkit.reserve import GpuClaim, Ledger, Owner, Request, Totals
from toolkit.reserve.decide import World
from toolkit.runtimes.base import Launch, Probes
from toolkit.supervise.service import ServiceRun
from toolkit.units import GIB

ME, OTHER = Owner(pid=1, start_time=1, deployment="me"), Owner(pid=2, start_time=2, deployment="other")
TOTALS = Totals(gpu_bytes={"GPU-a": 80 * GIB})


@dataclass
class Boot:
    """A boot in which time is set by hand and everybody lives."""

    now_s: float = 0.0
    gone: set[Owner] = field(default_factory=set)

    def world(self) -> World:
        return World("boot", self.now_s, lambda owner: owner not in self.gone)


@pytest.fixture
def boot():
    return Boot()


@pytest.fixture
def ledger(tmp_path, boot):
    return Ledger(tmp_path / "ledger.json", boot.world)


def run(name: str) -> ServiceRun:
    return ServiceRun(name, "command", lambda _: Launch((), {}, Probes(None)), 1)


def on_gpu(gib: int | None, share: bool = True) -> Request:
    return Request(gpus=(GpuClaim(uuid="GPU-a", share=share, memory_bytes=None if gib is None else gib * GIB),))


def held(ledger, *services, uses=(), **requests) -> Reservation:
    wanted = requests or {name: Request(cpus=(number,)) for number, name in enumerate(services)}
    return Reservation(ledger, ME, wanted, TOTALS, gpu_use=lambda: tuple(uses))


def services(ledger) -> list[str | None]:
    return sorted(grant.service for grant in ledger.grants())


def test_a_service_that_waits_longer_than_the_window_keeps_its_grant(ledger, boot):
    ours = held(ledger, "llm", "embed")
    ours.hold(run("llm"))
    ours.note(waiting={"embed"}, resting=())
    for _ in range(5):
        boot.now_s += 800
        ours.renew()
    ours.hold(run("embed"))
    boot.now_s += 10_000
    assert services(ledger) == ["embed", "llm"]


def test_a_service_whose_turn_came_and_who_never_reached_preload_loses_its_grant_in_time(ledger, boot):
    ours = held(ledger, "llm")
    ours.note(waiting=(), resting=())
    boot.now_s += 899
    ours.renew()
    assert services(ledger) == ["llm"]
    boot.now_s += 1
    assert services(ledger) == []


def test_a_grant_that_ran_out_is_granted_again_when_its_turn_comes(ledger, boot):
    ours = held(ledger, "llm")
    ours.note(waiting={"llm"}, resting=())
    boot.now_s += 1000
    ours.renew()
    assert services(ledger) == []
    ours.hold(run("llm"))
    boot.now_s += 1000
    assert services(ledger) == ["llm"]


def test_a_grant_that_ran_out_and_went_to_another_is_refused_with_the_holder(ledger, boot):
    ours = held(ledger, "llm")
    boot.now_s += 1000
    ledger.grant(OTHER, Request(cpus=(0,)), TOTALS, "rival")
    with pytest.raises(ToolkitError, match="deployment 'other'"):
        ours.hold(run("llm"))


def test_what_came_to_rest_is_given_back_and_taken_again_on_a_restart(ledger):
    ours = held(ledger, "llm", "embed")
    ours.hold(run("llm"))
    ours.note(waiting=(), resting={"llm"})
    ours.give_back()
    assert services(ledger) == ["embed"]
    ours.note(waiting=(), resting=())
    ours.hold(run("llm"))
    assert services(ledger) == ["embed", "llm"]


def test_between_attempts_nobody_comes_in(ledger):
    ours = held(ledger, "llm")
    ours.hold(run("llm"))
    with pytest.raises(ToolkitError):
        ledger.grant(OTHER, Request(cpus=(0,)), TOTALS)


def test_release_lets_go_of_everything_and_of_nobody_elses(ledger):
    ledger.grant(OTHER, Request(cpus=(9,)), TOTALS, "theirs")
    held(ledger, "llm", "embed").release()
    assert services(ledger) == ["theirs"]


def test_everything_is_granted_or_nothing(ledger):
    ledger.grant(OTHER, Request(cpus=(1,)), TOTALS, "theirs")
    with pytest.raises(ToolkitError, match="CPUs 1 held by deployment 'other'"):
        held(ledger, "llm", "embed")
    assert services(ledger) == ["theirs"]


def test_free_memory_that_is_less_than_the_ledger_says_names_the_holder(ledger, monkeypatch):
    monkeypatch.setattr(reservation, "processes_of", lambda *grants: frozenset(grant.owner.pid for grant in grants))
    use = DeviceUse(
        "GPU-a", 0, 80 * GIB, 50 * GIB,
        (Holder(pid=2, name="python3", used_bytes=20 * GIB), Holder(pid=77, name="jupyter", used_bytes=30 * GIB)),
    )  # fmt: skip
    ledger.grant(OTHER, on_gpu(20), TOTALS, "theirs")
    ours = held(ledger, uses=[use], small=on_gpu(30), nothing=Request())
    assert not ours.free_memory(run("small")).blocks
    assert "30.0 GiB more than planned is in use on GPU 0" in ours.free_memory(run("small")).text
    assert ours.free_memory(run("nothing")) is None
    ours.release()
    ours = held(ledger, uses=[use], llm=on_gpu(40))
    found = ours.free_memory(run("llm"))
    assert found.blocks
    assert found.text == (
        "10.0 GiB of memory is missing on GPU 0 (40.0 GiB needed, 30.0 GiB left): jupyter (pid 77) holds 30.0 GiB"
    )


def test_of_an_unknown_need_nothing_is_missing(ledger):
    ours = held(ledger, uses=[DeviceUse("GPU-a", 0, 80 * GIB, 80 * GIB)], llm=on_gpu(None, share=False))
    assert not ours.free_memory(run("llm")).blocks


def test_what_a_sibling_was_granted_is_not_free_although_it_has_not_started(ledger, monkeypatch):
    monkeypatch.setattr(reservation, "processes_of", lambda *grants: frozenset(grant.owner.pid for grant in grants))
    idle = DeviceUse("GPU-a", 0, 80 * GIB, 10 * GIB, (Holder(pid=77, name="jupyter", used_bytes=10 * GIB),))
    ours = held(ledger, uses=[idle], llm=on_gpu(40), embed=on_gpu(40))
    assert "10.0 GiB of memory is missing" in ours.free_memory(run("embed")).text


def test_a_changed_service_holds_what_it_had_until_its_next_attempt_begins(ledger):
    ours = held(ledger, "llm", "embed")
    ours.hold(run("llm"))
    ours.change({"llm": Request(cpus=(0, 5))}, TOTALS)
    assert [grant.request.cpus for grant in ledger.grants() if grant.service == "llm"] == [(0,), (0, 5)]
    with pytest.raises(ToolkitError):
        ledger.grant(OTHER, Request(cpus=(5,)), TOTALS)
    ours.hold(run("llm"))
    assert [grant.request.cpus for grant in ledger.grants() if grant.service == "llm"] == [(0, 5)]


def test_a_change_that_does_not_fit_changes_nothing(ledger):
    ours = held(ledger, "llm", "embed")
    before = ledger.grants()
    with pytest.raises(ToolkitError, match="CPUs 1 held by"):
        ours.change({"llm": Request(cpus=(0, 1))}, TOTALS)
    assert ledger.grants() == before
    ours.hold(run("llm"))
    assert services(ledger) == ["embed", "llm"]


def test_what_a_removed_service_held_is_given_back(ledger):
    ours = held(ledger, "llm", "embed")
    ours.note(waiting=(), resting={"llm"})
    ours.give_back()
    assert services(ledger) == ["embed"]


def test_what_adopted_processes_hold_follows_to_the_new_owner_without_a_second_grant(ledger, boot):
    first = held(ledger, "llm", "embed")
    for name, pid in (("llm", 70), ("embed", 71)):
        first.hold(run(name))
        first.keep(run(name), Identity(pid, pid))
    boot.gone.add(ME)
    before = ledger.grants()
    assert len(before) == 2
    us = Owner(pid=3, start_time=3, deployment="me")
    wanted = {"llm": Request(cpus=(0,)), "embed": Request(cpus=(1, 2))}
    ours = Reservation(ledger, us, wanted, TOTALS, adopted={"llm": Identity(70, 70), "embed": Identity(71, 71)})
    assert {grant.owner for grant in ledger.grants()} == {us}
    assert [(grant.service, grant.request.cpus) for grant in ledger.grants()] == [
        ("embed", (1,)), ("llm", (0,)), ("embed", (1, 2)),
    ]  # fmt: skip
    assert before[0].id in {grant.id for grant in ledger.grants()}
    ours.hold(run("embed"))
    assert services(ledger) == ["embed", "llm"]


def test_what_a_process_kept_that_is_wanted_no_more_is_given_back(ledger, boot):
    first = held(ledger, "llm", "old")
    first.keep(run("old"), Identity(70, 70))
    boot.gone.add(ME)
    us = Owner(pid=3, start_time=3, deployment="me")
    ours = Reservation(ledger, us, {"llm": Request(cpus=(0,))}, TOTALS, adopted={"old": Identity(70, 70)})
    assert services(ledger) == ["llm", "old"]
    ours.give_back()
    assert services(ledger) == ["llm"]


async def test_a_deployment_keeps_its_reservation_in_step(ledger, boot, tmp_path, monkeypatch):
    monkeypatch.setattr(reservation, "RENEW_S", 0.01)
    ours = held(ledger, "llm", "embed")
    async with tended(ours) as noted:
        llm, embed = tiny("llm", "hang"), tiny("embed", after=("llm",))
        supervisor = supervise(tmp_path / "state", llm, embed, reserve=ours.hold, on_change=noted)
        await supervisor.start()
        await until(lambda: {"llm"} == {grant.service for grant in ledger.grants() if grant.deadline_s is None})
        boot.now_s = 899.0
        await until(lambda: all(grant.deadline_s in (None, 1799.0) for grant in ledger.grants()))
        supervisor.stop("embed")
        await until(lambda: services(ledger) == ["llm"])
        await supervisor.close()
        await until(lambda: services(ledger) == [])
