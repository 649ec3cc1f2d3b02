"""Placement after READY with real processes: what is seen becomes an event, a metric and a part of the status."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.supervise.conftest import service_of, supervise, tiny, until
from toolkit.affinity import wrap
from toolkit.errors import ToolkitError
from toolkit.host.gpu_use import DeviceUse
from toolkit.host.model import Holder
from toolkit.supervise.placement import Expected
from toolkit.supervise.service import MemoryDifference
from toolkit.supervise.state import read_events
from toolkit.units import GIB

Start = Callable[..., Any]
ALLOWED = tuple(sorted(os.sched_getaffinity(0)))
GPU = ({"uuid": "GPU-a", "index": 0, "budget_mib": 1024},)


def no_gpus() -> tuple[DeviceUse, ...]:
    return ()


def told(state_dir: Path, kind: str) -> list[str]:
    return [event["text"] for event in read_events(state_dir / "events.jsonl") if event["kind"] == kind]


async def test_a_pinned_instance_has_every_thread_on_plan_when_it_is_ready(state_dir: Path) -> None:
    run = tiny("pinned", "setsid-grandchild", cpus=ALLOWED[:1])
    document = await supervise(state_dir, run, wrap=wrap, gpu_use=no_gpus).run("ready", 30.0)
    placement = document["services"][0]["placement"]
    assert placement["on_plan_percent"] == 100.0
    assert placement["threads"] >= 2, "the grandchild counts too"
    assert placement["drifting"] == placement["foreign"] == placement["over_budget"] == []
    assert placement["bytes_by_node"] is None
    assert "one NUMA node" in " ".join(placement["not_measurable"])
    assert told(state_dir, "drift") == []


async def test_a_thread_off_plan_is_an_event_a_metric_and_in_the_status(running: Start, state_dir: Path) -> None:
    stray = tiny("stray", cpus=(4095,))
    supervisor = await running(stray, gpu_use=no_gpus)  # not wrapped, so its mask is ours
    await supervisor.wait_ready(30.0)
    placement = service_of(supervisor, "stray")["placement"]
    assert placement["on_plan_percent"] == 0.0
    assert placement["drifting"][0]["pid"] == service_of(supervisor, "stray")["pid"]
    assert "not held to the plan" in told(state_dir, "drift")[0]
    metrics = supervisor.metrics().decode()
    assert 'coexist_placement_drift{service="stray",what="threads"} 1.0' in metrics
    assert 'coexist_placement_drifts_total{service="stray"} 1.0' in metrics
    assert 'coexist_threads_on_plan_ratio{service="stray"} 0.0' in metrics


async def test_a_context_that_comes_after_ready_is_found_later_and_told_once(running: Start, state_dir: Path) -> None:
    holders: list[Holder] = []
    looks: list[int] = []

    def gpu_use() -> tuple[DeviceUse, ...]:
        looks.append(len(holders))
        return (DeviceUse("GPU-a", 0, 80 * GIB, 0, tuple(holders)),)

    run = tiny("alone", gpus=GPU, expected=Expected(budgets={"GPU-a": GIB}, alone=True))
    supervisor = await running(run, gpu_use=gpu_use, watch_s=0.01, placement_s=0.02)
    await supervisor.wait_ready(30.0)
    assert service_of(supervisor, "alone")["placement"]["foreign"] == []
    holders.append(Holder(pid=1, name="jupyter", used_bytes=GIB))
    await until(lambda: service_of(supervisor, "alone")["placement"]["foreign"])
    entry = service_of(supervisor, "alone")["placement"]["foreign"][0]
    assert entry == {"gpu": "GPU-a", "pid": 1, "name": "jupyter", "used_mib": 1024, "ours": False}
    await until(lambda: looks.count(1) > 3)
    assert len(told(state_dir, "drift")) == 1


async def test_a_start_waits_for_memory_that_comes_back(state_dir: Path) -> None:
    missing = "1.0 GiB is missing on GPU 0: python3 (pid 7) holds 2.0 GiB"
    answers = iter([MemoryDifference(missing, blocks=True), None])
    run = tiny("patient", gpus=GPU)
    document = await supervise(state_dir, run, gpu_use=no_gpus, free_memory=lambda _: next(answers)).run("ready", 30.0)
    assert document["ready"]
    assert told(state_dir, "log")[0] == f"waits for GPU memory: {missing}"


async def test_a_difference_that_leaves_room_is_told_and_stops_nothing(state_dir: Path) -> None:
    found = MemoryDifference(
        "2.0 GiB more than planned is in use on GPU 0: jupyter (pid 7) holds 2.0 GiB", blocks=False
    )
    run = tiny("roomy", gpus=GPU)
    assert (await supervise(state_dir, run, gpu_use=no_gpus, free_memory=lambda _: found).run("ready", 30.0))["ready"]
    assert told(state_dir, "log")[0] == found.text


async def test_memory_that_never_comes_back_is_a_failure_that_names_the_holder(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolkit.supervise.gpu_turn._MEMORY_WAIT_S", 0.0)
    missing = "1.0 GiB is missing on GPU 0: jupyter (pid 7) holds 2.0 GiB"
    found = MemoryDifference(missing, blocks=True)
    supervisor = supervise(state_dir, tiny("late", gpus=GPU), gpu_use=no_gpus, free_memory=lambda _: found)
    with pytest.raises(ToolkitError) as caught:
        await supervisor.run("ready", 30.0)
    assert (caught.value.what, caught.value.code) == (f"'late' failed: {missing}", "gpu_memory")
    assert caught.value.details["status"]["services"][0]["attempt"] == 1


async def test_a_service_without_gpus_asks_for_no_memory(state_dir: Path) -> None:
    def free_memory(_: object) -> None:
        raise AssertionError("asked")

    assert (await supervise(state_dir, tiny("cpu"), gpu_use=no_gpus, free_memory=free_memory).run("ready", 30.0))[
        "ready"
    ]
