"""A supervisor that is given other services: only what differs is restarted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.supervise.conftest import carriers, service_of, state_of, supervise, tiny, until
from toolkit.config.models import Restart
from toolkit.errors import ManyFaultsError, NotReadyInTimeError, ToolkitError
from toolkit.supervise import client
from toolkit.supervise.service import ServiceRun
from toolkit.supervise.state import StateFolder, read_events
from toolkit.supervise.supervisor import Supervisor

Start = Callable[..., Any]


def asked(run: ServiceRun, **spec: str) -> ServiceRun:
    return replace(run, spec={"argv": "1", **spec})


async def test_only_what_differs_is_restarted_and_the_rest_keeps_its_pid(running: Start, state_dir: Path) -> None:
    same, other, gone, new = (asked(tiny(name)) for name in ("same", "other", "gone", "new"))
    supervisor: Supervisor = await running(same, other, gone)
    await supervisor.wait_ready(30.0)
    before = {name: carriers(name) for name in ("same", "other")}
    found = supervisor.apply([same, asked(other, argv="2"), new])
    assert (found.added, found.removed, found.unchanged) == (("new",), ("gone",), ("same",))
    assert found.changed == {"other": ("argv",)}
    assert not supervisor.readiness()["ready"]
    await supervisor.wait_ready(30.0)
    await until(lambda: [each["name"] for each in supervisor.snapshot()["services"]] == ["same", "other", "new"])
    assert carriers("same") == before["same"]
    assert carriers("other") != before["other"]
    assert (carriers("gone"), len(carriers("new"))) == ([], 1)
    assert service_of(supervisor, "other")["restarts"] == 0
    assert "gone" in supervisor.resting()
    (told,) = [event for event in read_events(state_dir / "events.jsonl") if event.get("state") == "reloaded"]
    assert told["changed"] == {"other": ["argv"]}
    assert b'service="gone"' not in supervisor.metrics()


async def test_the_same_again_does_nothing(running: Start) -> None:
    run = asked(tiny("twice"))
    supervisor: Supervisor = await running(run)
    await supervisor.wait_ready(30.0)
    before = carriers("twice")
    assert supervisor.apply([run]).unchanged == ("twice",)
    assert (state_of(supervisor, "twice"), carriers("twice")) == ("SERVING", before)


async def test_keys_of_the_supervisor_hold_without_a_restart(running: Start) -> None:
    run, base = asked(tiny("web")), asked(tiny("base"))
    supervisor: Supervisor = await running(run, base)
    await supervisor.wait_ready(30.0)
    moved = replace(asked(run, grace="9"), grace_s=9.0, requires=("base",), port=1, launch=lambda _: 1 / 0)
    found = supervisor.apply([moved, base])
    assert found.applied == {"web": ("grace",)}
    assert service_of(supervisor, "web")["port"] == run.port, "it stays where it is"
    supervisor.stop("base")
    await until(lambda: state_of(supervisor, "base") == "STOPPED")
    assert supervisor.readiness()["services"]["web"] == {"ready": False, "state": "SERVING"}


async def test_what_rests_is_started_again_and_what_waits_is_replaced(running: Start) -> None:
    rests, base = asked(tiny("rests")), asked(tiny("base", "hang"))
    waits = asked(tiny("waits", after=("base",)))
    supervisor: Supervisor = await running(rests, base, waits)
    supervisor.stop("rests")
    await until(lambda: state_of(supervisor, "rests") == "STOPPED")
    found = supervisor.apply([rests, asked(tiny("base"), argv="2"), asked(replace(waits, port=1), argv="2")])
    assert (found.started, set(found.changed)) == (("rests",), {"base", "waits"})
    assert service_of(supervisor, "waits")["port"] == 1
    await until(lambda: state_of(supervisor, "rests") == state_of(supervisor, "base") == "SERVING")
    assert service_of(supervisor, "waits")["attempt"] == 1


async def test_a_service_that_comes_back_while_it_leaves_is_started_again(running: Start) -> None:
    one, two = asked(tiny("one")), asked(tiny("two"))
    supervisor: Supervisor = await running(one, two)
    await supervisor.wait_ready(30.0)
    supervisor.apply([two])
    assert state_of(supervisor, "one") == "DRAINING"
    assert supervisor.readiness()["ready"], "what leaves is not waited for"
    assert supervisor.apply([one, two]).added == ("one",)
    await supervisor.wait_ready(30.0)
    assert service_of(supervisor, "one")["attempt"] == 2


async def test_all_is_stopped_after_a_reload_too(state_dir: Path) -> None:
    supervisor = supervise(state_dir, asked(tiny("first")))
    await supervisor.start()
    await supervisor.wait_ready(30.0)
    supervisor.apply([asked(tiny("second"))], "keep")
    assert (owner := StateFolder(state_dir).owner()) is not None
    assert owner.keeps
    await supervisor.close()
    assert (carriers("first"), carriers("second")) == ([], [])


async def test_a_file_is_handed_over_through_the_socket_and_errors_come_back_whole(
    running: Start, tmp_path: Path
) -> None:
    seen: list[Path] = []

    async def reload(_: Supervisor, config: Path) -> dict[str, Any]:
        seen.append(config)
        if config.name == "many.yaml":
            raise ManyFaultsError((ToolkitError("a", "1:2", "x"), ToolkitError("b", "3:4")))
        if config.name == "small.yaml":
            raise ToolkitError("it does not fit", "here", "Ask for less.", code="gpus", resource="gpus", needed=3)
        return {"added": ["x"]}

    supervisor: Supervisor = await running(tiny("web"), reload=reload)
    folder = Path(supervisor._folder.path)
    assert await asyncio.to_thread(client.reload, folder, tmp_path / "new.yaml") == {"added": ["x"]}
    with pytest.raises(ManyFaultsError) as many:
        await asyncio.to_thread(client.reload, folder, tmp_path / "many.yaml")
    assert [(each.what, each.where) for each in many.value.errors] == [("a", "1:2"), ("b", "3:4")]
    with pytest.raises(ToolkitError, match=r"here: it does not fit\. Ask for less") as small:
        await asyncio.to_thread(client.reload, folder, tmp_path / "small.yaml")
    assert (small.value.code, small.value.details) == ("gpus", {"resource": "gpus", "needed": 3})
    assert seen == [tmp_path / name for name in ("new.yaml", "many.yaml", "small.yaml")]


async def test_who_follows_a_reload_is_told_when_all_is_ready_or_what_failed(running: Start, tmp_path: Path) -> None:
    good, bad = asked(tiny("good")), asked(tiny("bad", "exit-early", restart=Restart(max_restarts=0)))
    supervisor: Supervisor = await running(good)
    folder = Path(supervisor._folder.path)
    assert (await asyncio.to_thread(client.wait_ready, folder, 30.0))["ready"]
    supervisor.apply([good, bad])
    with pytest.raises(ToolkitError, match="'bad' failed: exited with status 3") as caught:
        await asyncio.to_thread(client.wait_ready, folder, 30.0)
    assert caught.value.code == "exit"
    supervisor.apply([good, asked(tiny("slow", "hang"))])
    with pytest.raises(NotReadyInTimeError, match=r"not ready after 0.1 s: 'good' is in SERVING; 'slow' is in PRELOAD"):
        await asyncio.to_thread(client.wait_ready, folder, 0.1)


async def test_who_follows_a_deployment_that_ended_is_told_which_service_failed(state_dir: Path) -> None:
    bad = tiny("bad", "exit-early", restart=Restart(max_restarts=0))
    with pytest.raises(ToolkitError):
        await supervise(state_dir, bad).run("ready", 30.0)
    with pytest.raises(ToolkitError, match="'bad' failed"):
        await asyncio.to_thread(client.wait_ready, state_dir, 1.0)


async def test_what_stops_or_was_not_made_from_a_file_takes_no_other(running: Start, tmp_path: Path) -> None:
    supervisor: Supervisor = await running(tiny("web"))
    with pytest.raises(ToolkitError, match="follows no file"):
        await supervisor.reload(tmp_path / "x.yaml")
    supervisor.request_stop()
    with pytest.raises(ToolkitError, match="is stopping"):
        await supervisor.reload(tmp_path / "x.yaml")
