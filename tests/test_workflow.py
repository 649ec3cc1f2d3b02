"""``workflow.started`` on a machine whose GPUs are made up: real processes, a real ledger, a made-up driver."""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from pathlib import Path

import pytest

from tests.plan.machines import gpu, host, shared
from tests.ports import free_port
from toolkit import workflow
from toolkit.assemble import launches, paths
from toolkit.assemble.launches import Stage
from toolkit.assemble.reservation import Reservation
from toolkit.build import BuiltEngine
from toolkit.config import load
from toolkit.errors import ToolkitError
from toolkit.home import Home
from toolkit.host.gpu_use import DeviceUse
from toolkit.host.model import Holder, Host
from toolkit.plan import make
from toolkit.reserve import Ledger
from toolkit.store import Store
from toolkit.supervise import starting
from toolkit.supervise.starting import Step
from toolkit.supervise.state import read_events
from toolkit.units import GIB

TINY_SERVER = Path(__file__).with_name("supervise") / "tiny_server.py"
ALLOWED = sorted(os.sched_getaffinity(0))
JUPYTER = Holder(pid=1, name="jupyter", used_bytes=40 * GIB)


@pytest.fixture(autouse=True)
def own_runtime_folder(tmp_path, monkeypatch):
    (tmp_path / "run").mkdir(mode=0o700)
    monkeypatch.setenv("COEXIST_RUNTIME_DIR", str(tmp_path / "run"))


@pytest.fixture
def stage(tmp_path):
    """Services by name, with these keys, planned on a host with one GPU and this machine's CPUs."""

    def made(machine: Host | None = None, **services: dict) -> Stage:
        server = {
            "runtime": "command",
            "argv": [sys.executable, "-I", "-S", str(TINY_SERVER), "{port}"],
            "ready": {"path": "/health"},
            "canary": {"path": "/hello", "contains": "hello"},
            "cpus": "auto",
        }
        entries = {name: {**server, "port": free_port(), **keys} for name, keys in services.items()}
        file = tmp_path / "deploy.yaml"
        file.write_text(json.dumps({"version": 1, "name": "gpus", "services": entries}))
        deployment = load.deployment(file)
        machine = machine or host(gpu(0), cores=len(ALLOWED), cpus_allowed=tuple(ALLOWED))
        found = paths.find(deployment)
        plan = make(deployment.model, machine)
        return Stage(deployment.model, machine, plan, found, Home(tmp_path / "home"), {}, {}, os.environ)

    return made


@pytest.fixture
def driver(monkeypatch):
    """What the driver says of GPU 0 from now on."""

    def says(*holders: Holder) -> None:
        used = sum(holder.used_bytes or 0 for holder in holders)
        use = DeviceUse("GPU-00-abc", 0, 80 * GIB, used, holders)
        monkeypatch.setattr(workflow, "Reservation", partial(Reservation, gpu_use=lambda: (use,)))

    return says


def nothing(_: object) -> None:
    return None


@pytest.mark.parametrize(("fresh_s", "looks"), [(float("inf"), 1), (0.0, 2)])
def test_preparing_looks_at_the_host_again_only_once_what_was_seen_is_old(stage, tmp_path, monkeypatch, fresh_s, looks):
    machine, seen = stage(web={}).host, []
    monkeypatch.setattr(workflow, "this_host", lambda: seen.append(machine) or machine)
    monkeypatch.setattr(workflow, "_HOST_IS_FRESH_S", fresh_s)
    prepared = workflow.prepare(load.deployment(tmp_path / "deploy.yaml"), Home(tmp_path / "home"), nothing)
    assert [service.name for service in prepared.plan.services] == ["web"]
    assert len(seen) == looks


async def test_a_start_is_told_step_by_step_until_its_supervisor_runs(stage, tmp_path, monkeypatch):
    machine, steps = stage(web={"cpus": 1}).host, []
    monkeypatch.setattr(workflow, "this_host", lambda: machine)
    home = Home(tmp_path / "home")
    prepared = workflow.prepare(load.deployment(tmp_path / "deploy.yaml"), home, nothing, steps.append)
    assert [step.name for step in steps] == ["plan", "check", "answers", "launch"]
    start = starting.read(home.state("gpus"))
    assert start is not None
    assert start.step == steps[-1]
    async with workflow.started(prepared, nothing):
        assert starting.read(home.state("gpus")) is None


async def test_of_a_start_that_gets_no_resources_nothing_is_told_any_more(stage, tmp_path, monkeypatch):
    machine = stage(web={"cpus": len(ALLOWED)}).host
    monkeypatch.setattr(workflow, "this_host", lambda: machine)
    home = Home(tmp_path / "home")
    prepared = workflow.prepare(load.deployment(tmp_path / "deploy.yaml"), home, nothing)
    monkeypatch.setattr(workflow, "Reservation", refuse)
    with pytest.raises(ToolkitError, match="held by another"):
        await workflow.started(prepared, nothing).__aenter__()
    assert starting.read(home.state("gpus")) is None


def refuse(*_: object, **__: object) -> None:
    raise ToolkitError("held by another")


def test_what_is_doubtful_about_an_engine_is_told_when_it_is_taken(stage, tmp_path, monkeypatch):
    engine = BuiltEngine("given", "trtllm", "3f9a", tmp_path, True, 0.0, (), {}, warnings=("nobody knows its release",))
    monkeypatch.setattr(workflow.engines, "of_deployment", lambda *_: {"llm": None})
    monkeypatch.setattr(workflow.engines, "ensure", lambda *_: engine)
    machine, said, steps = stage(web={}).host, [], []
    deployment = load.deployment(tmp_path / "deploy.yaml")
    found, store = paths.find(deployment), Store(tmp_path / "home")
    ready = workflow.build_engines(deployment, found, store, said.append, machine, at=steps.append)
    assert ready["llm"].warnings == ("nobody knows its release",)
    assert said == ["engine 'llm': nobody knows its release", f"reused {tmp_path}"]
    assert steps == [Step("build", "llm")]


def told(stage: Stage, kind: str) -> list[dict]:
    return [event for event in read_events(stage.home.state("gpus") / "events.jsonl") if event["kind"] == kind]


async def test_sharers_of_a_gpu_start_one_after_another_on_their_uuid_and_hold_it(stage, driver):
    driver()
    both = stage(llm=shared("30GiB"), embed=shared("20GiB"))
    assert {launch.env["CUDA_VISIBLE_DEVICES"] for launch in launches.launches(both).values()} == {"GPU-00-abc"}
    async with workflow.started(both, nothing) as supervisor:
        await supervisor.wait_ready(60.0)
        grants = Ledger.of_this_host().grants()
        assert sorted(claim.memory_bytes // GIB for grant in grants for claim in grant.request.gpus) == [20, 30]
        assert all(grant.deadline_s is None for grant in grants), "they have reached PRELOAD"
    order = [(event["service"], event["to"]) for event in told(both, "transition")]
    assert order.index(("llm", "SERVING")) < order.index(("embed", "PRELOAD"))
    assert Ledger.of_this_host().grants() == ()


async def test_memory_that_somebody_took_since_the_plan_stops_the_start_and_names_the_holder(
    stage, driver, monkeypatch
):
    monkeypatch.setattr("toolkit.supervise.gpu_turn._MEMORY_WAIT_S", 0.0)
    driver(JUPYTER)
    alone = stage(llm={"gpus": 1, "gpu_memory": "60GiB"})
    async with workflow.started(alone, nothing) as supervisor:
        with pytest.raises(ToolkitError, match=r"jupyter \(pid 1\) holds 40\.0 GiB"):
            await supervisor.wait_ready(60.0)
    assert [event["to"] for event in told(alone, "transition")][:1] == ["DRAINING"], "nothing was executed"


async def test_memory_that_suffices_all_the_same_stops_nothing(stage, driver):
    driver(JUPYTER)
    async with workflow.started(stage(llm={"gpus": 1, "gpu_memory": "30GiB"}), nothing) as supervisor:
        await supervisor.wait_ready(60.0)
        assert supervisor.snapshot()["ready"]


async def test_a_second_deployment_that_does_not_fit_is_refused_before_anything_starts(stage, driver):
    driver()
    first = stage(llm=shared("50GiB"))
    async with workflow.started(first, nothing) as supervisor:
        await supervisor.wait_ready(60.0)
        second = stage(embed=shared("50GiB"))
        with pytest.raises(ToolkitError) as caught:
            async with workflow.started(second, nothing):
                pytest.fail("it started")
    assert caught.value.details["resource"] == "gpu_memory"
    assert "held by deployment 'gpus'" in caught.value.what


async def test_what_is_held_against_the_plan_comes_from_the_plan(stage):
    made = stage(llm={"gpus": 1, "gpu_memory": "30GiB"}, embed={"cpus": 1})
    runs = {planned.name: launches.service_run(made, planned) for planned in made.plan.services}
    assert runs["llm"].expected.budgets == {"GPU-00-abc": 30 * GIB}
    assert (runs["llm"].expected.alone, runs["embed"].expected.budgets) == (True, {})
    assert runs["llm"].expected.memory_nodes == (0,)
    unknown = stage(llm={"gpus": {"count": 1, "share": True}})
    assert launches.service_run(unknown, unknown.plan.services[0]).expected.alone, "an unknown need is alone"
