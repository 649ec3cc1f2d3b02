"""The supervisor with real processes: tiny servers that start in milliseconds and misbehave on demand."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.supervise.conftest import (
    HELLO,
    RUN,
    answer,
    ask,
    carriers,
    service_of,
    state_of,
    supervise,
    tiny,
    tiny_probes,
    until,
)
from toolkit.config.models import Restart
from toolkit.errors import NotReadyInTimeError, ToolkitError
from toolkit.runtimes.base import CanaryCheck, HttpProbe, LogProbe
from toolkit.supervise.lifecycle import Failure
from toolkit.supervise.outcome import Outcome
from toolkit.supervise.state import StateFolder, read_events
from toolkit.supervise.supervisor import Supervisor

Start = Callable[..., Any]


def arrows(state_dir: Path, service: str) -> list[tuple[str, str]]:
    told = [event for event in read_events(state_dir / "events.jsonl") if event["service"] == service]
    return [(event["from"], event["to"]) for event in told if event["kind"] == "transition"]


async def test_a_service_starts_serves_and_is_stopped_whole(state_dir: Path) -> None:
    run = tiny("whole")
    document = await supervise(state_dir, run).run("ready", 30.0)
    (service,) = document["services"]
    assert (document["ready"], service["state"], service["attempt"]) == (True, "SERVING", 1)
    assert service["canary"]["ok"]
    assert service["first_token_ms"]["first"] > 0
    assert [stage["state"] for stage in service["stages"]] == ["INIT", "PRELOAD", "PRIME", "SERVING"]
    assert carriers("whole") == []
    assert arrows(state_dir, "whole") == [
        ("INIT", "PRELOAD"),
        ("PRELOAD", "PRIME"),
        ("PRIME", "SERVING"),
        ("SERVING", "DRAINING"),
        ("DRAINING", "STOPPED"),
    ]
    assert {path.name for path in state_dir.iterdir()} == {"events.jsonl", "lock", "logs", "status.json"}


async def test_every_key_of_the_status_is_present_before_anything_is_known(state_dir: Path) -> None:
    run = tiny("a", gpus=({"uuid": "GPU-a", "index": 0, "budget_mib": None},))
    document = supervise(state_dir, run).snapshot()
    assert document == {
        "schema": 1,
        "deployment": "tiny",
        "control": None,
        "starting": None,
        "ready": False,
        "services": [
            {
                "name": "a",
                "state": "INIT",
                "activity": None,
                "attempt": 1,
                "pid": None,
                "port": run.port,
                "ready_at": None,
                "windows_s": {},
                "stages": [],
                "first_token_ms": {"first": None, "p50": None, "p99": None},
                "canary": {"ok": None, "expected": None, "got": None},
                "proof": None,
                "late_compiles": None,
                "late_compiled": [],
                "placement": None,
                "gpus": [{"uuid": "GPU-a", "index": 0, "budget_mib": None}],
                "cpus": "",
                "restarts": 0,
                "last_failure": None,
            }
        ],
    }


async def test_the_status_on_disk_is_the_last_one(state_dir: Path) -> None:
    await supervise(state_dir, tiny("disk")).run("ready", 30.0)
    document = json.loads((state_dir / "status.json").read_text())
    assert document["services"][0]["state"] == "STOPPED"


async def test_a_program_that_ignores_term_is_gone_all_the_same(state_dir: Path) -> None:
    await supervise(state_dir, tiny("stubborn", "ignore-term", grace_s=0.2)).run("ready", 30.0)
    assert carriers("stubborn") == []


@pytest.mark.parametrize("flag", ["setsid-grandchild", "daemon"])
async def test_what_leaves_its_session_is_gone_all_the_same(state_dir: Path, flag: str) -> None:
    await supervise(state_dir, tiny(f"far-{flag}", flag)).run("ready", 30.0)
    assert carriers(f"far-{flag}") == []


async def test_independent_services_start_at_the_same_time(running: Start, state_dir: Path) -> None:
    supervisor = await running(tiny("one", "hang"), tiny("two", "hang"))
    await until(lambda: (state_of(supervisor, "one"), state_of(supervisor, "two")) == ("PRELOAD", "PRELOAD"))


async def test_after_waits_for_serving_and_stops_run_backwards(state_dir: Path) -> None:
    await supervise(state_dir, tiny("embed", after=("llm",)), tiny("llm")).run("ready", 30.0)
    told = [
        (event["service"], event["to"])
        for event in read_events(state_dir / "events.jsonl")
        if event["kind"] == "transition" and event["to"] in ("PRELOAD", "SERVING", "STOPPED")
    ]
    assert told == [
        ("llm", "PRELOAD"),
        ("llm", "SERVING"),
        ("embed", "PRELOAD"),
        ("embed", "SERVING"),
        ("embed", "STOPPED"),
        ("llm", "STOPPED"),
    ]


async def test_a_service_that_exits_early_is_retried_then_given_up_with_its_last_words(state_dir: Path) -> None:
    supervisor = supervise(state_dir, tiny("early", "exit-early"))
    with pytest.raises(ToolkitError) as caught:
        await supervisor.run("ready", 30.0)
    assert caught.value.what == (
        "'early' failed: gave up after 2 restarts within 60 s: "
        "exited with status 3; last line of its log: RuntimeError: no such weights"
    )
    (service,) = caught.value.details["status"]["services"]
    assert (service["state"], service["attempt"], service["restarts"]) == ("FAILED", 3, 2)
    assert service["last_failure"]["state"] == "PRELOAD"


async def test_an_exit_with_status_0_is_a_failure_too(state_dir: Path) -> None:
    with pytest.raises(ToolkitError, match="exited with status 0"):
        await supervise(state_dir, tiny("zero", "exit-zero", restart=Restart(max_restarts=0))).run("ready", 30.0)


async def test_an_early_fault_that_passes_is_survived(state_dir: Path) -> None:
    document = await supervise(state_dir, tiny("second", "1:exit-early")).run("ready", 30.0)
    (service,) = document["services"]
    assert (service["state"], service["attempt"], service["restarts"]) == ("SERVING", 2, 1)
    assert service["last_failure"]["attempt"] == 1


async def test_the_verdict_stop_of_a_diagnosis_is_not_retried(state_dir: Path) -> None:
    def diagnose(outcome: Outcome) -> Failure:
        assert "no such weights" in outcome.log.tail()
        return Failure(f"weights are missing ({outcome.exit_status})", "stop", "weights", advice="Download them.")

    with pytest.raises(ToolkitError, match="'stop' failed: weights are missing") as caught:
        await supervise(state_dir, tiny("stop", "exit-early"), diagnose=diagnose).run("ready", 30.0)
    assert (caught.value.hint, caught.value.code) == ("Download them.", "weights")
    assert caught.value.details["status"]["services"][0]["attempt"] == 1


async def test_a_failed_dependency_stops_its_dependants_and_is_the_one_that_is_named(state_dir: Path) -> None:
    llm = tiny("llm", "exit-early", restart=Restart(max_restarts=0))
    with pytest.raises(ToolkitError, match=r"^[^;]*'llm' failed") as caught:
        await supervise(state_dir, tiny("embed", after=("llm",)), llm).run("ready", 30.0)
    embed = caught.value.details["status"]["services"][0]
    assert embed["last_failure"]["class"] == "dependency"
    assert (embed["state"], embed["pid"]) == ("FAILED", None)


async def test_a_crash_after_serving_is_followed_by_a_new_attempt(running: Start) -> None:
    run = tiny("crash")
    supervisor = await running(run)
    await supervisor.wait_ready(30.0)
    first = service_of(supervisor, "crash")["pid"]
    await ask(run.port, "/crash")
    await until(lambda: service_of(supervisor, "crash")["attempt"] == 2)
    await supervisor.wait_ready(30.0)
    service = service_of(supervisor, "crash")
    assert (service["state"], service["restarts"]) == ("SERVING", 1)
    assert service["last_failure"]["summary"].startswith("exited with status 7")
    assert service["pid"] != first


async def test_the_rest_of_a_crashed_tree_is_gone_before_its_replacement_starts(running: Start) -> None:
    run = tiny("remains", "setsid-grandchild")
    supervisor = await running(run)
    await supervisor.wait_ready(30.0)
    before = set(carriers("remains"))
    await ask(run.port, "/crash")
    await until(lambda: service_of(supervisor, "remains")["attempt"] == 2)
    await supervisor.wait_ready(30.0)
    assert len(before) == 2
    assert not before & set(carriers("remains"))


async def test_kill_9_of_a_server_is_seen_and_named(running: Start) -> None:
    supervisor = await running(tiny("killed"))
    await supervisor.wait_ready(30.0)
    os.kill(service_of(supervisor, "killed")["pid"], signal.SIGKILL)
    await until(lambda: service_of(supervisor, "killed")["last_failure"])
    assert service_of(supervisor, "killed")["last_failure"]["summary"].startswith("was killed by SIGKILL")


async def test_a_taken_port_stops_the_start_before_anything_runs(state_dir: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as owner:
        run = tiny("port", port=owner.getsockname()[1])
        with pytest.raises(ToolkitError, match=rf"port {run.port} of 'port' is in use by .*pid {os.getpid()}"):
            await supervise(state_dir, run, tiny("other")).run("ready", 30.0)
    assert read_events_of(state_dir) == []
    assert not (state_dir / "supervisor.json").exists()


def read_events_of(state_dir: Path) -> list[dict[str, Any]]:
    return [event for event in read_events(state_dir / "events.jsonl") if event["service"]]


async def test_a_port_that_is_taken_between_two_attempts_is_tried_again(running: Start) -> None:
    run = tiny("thief", restart=Restart(max_restarts=100), backoff_first_s=1.0)
    supervisor = await running(run)
    await supervisor.wait_ready(30.0)
    os.kill(service_of(supervisor, "thief")["pid"], signal.SIGKILL)
    await until(lambda: state_of(supervisor, "thief") == "BACKOFF")
    with socket.create_server(("127.0.0.1", run.port)):
        await until(lambda: service_of(supervisor, "thief")["last_failure"]["class"] == "port_in_use")
    await supervisor.wait_ready(30.0)
    assert service_of(supervisor, "thief")["restarts"] >= 2


async def test_not_ready_in_time_says_what_and_why_and_leaves_nothing(state_dir: Path) -> None:
    with pytest.raises(NotReadyInTimeError) as caught:
        await supervise(state_dir, tiny("slow", "hang"), tiny("embed", after=("slow",))).run("ready", 0.3)
    reasons = caught.value.details["reasons"]
    assert reasons[0].startswith("'slow' is in PRELOAD for ")
    assert reasons[0].endswith("nothing listens yet")
    assert reasons[1] == "'embed' waits for 'slow'"
    assert carriers("slow") == []


async def test_a_hang_without_progress_ends_its_window(state_dir: Path) -> None:
    run = tiny("hang", "hang", window_s=0.3, restart=Restart(max_restarts=0))
    with pytest.raises(ToolkitError, match=r"'hang' failed: no progress for .*last line of its log: tiny server"):
        await supervise(state_dir, run).run("ready", 30.0)


async def test_the_verdict_wait_gives_a_hang_more_time(state_dir: Path) -> None:
    def diagnose(outcome: Outcome) -> Failure:
        return Failure("downloads", "wait")

    run = tiny("patient", "hang", window_s=0.1, restart=Restart(max_restarts=0))
    with pytest.raises(ToolkitError, match="downloads"):
        await supervise(state_dir, run, diagnose=diagnose).run("ready", 30.0)
    told = [event["text"] for event in read_events(state_dir / "events.jsonl") if event["kind"] == "log"]
    assert [text.partition(":")[0] for text in told] == [f"waits longer ({n} of 3)" for n in (1, 2, 3)]


async def test_a_wrong_canary_fails_at_once_and_shows_both_sides(state_dir: Path) -> None:
    wrong = tiny_probes(canary=CanaryCheck(request=HttpProbe("/hello", expect_text="goodbye")))
    with pytest.raises(ToolkitError) as caught:
        await supervise(state_dir, tiny("wrong", probes=wrong)).run("ready", 30.0)
    (service,) = caught.value.details["status"]["services"]
    assert (caught.value.code, service["attempt"]) == ("canary_wrong", 1)
    assert service["canary"]["ok"] is False
    assert "goodbye" in service["canary"]["expected"]
    assert "hello from wrong" in service["canary"]["got"]


async def test_ready_can_be_a_line_of_this_attempts_log(state_dir: Path) -> None:
    (state_dir / "logs").mkdir(parents=True)
    (state_dir / "logs" / "lines.log").write_text("tiny server of another time\n")
    probes = tiny_probes(loaded=LogProbe(r"^tiny server \d+ on"))
    document = await supervise(state_dir, tiny("lines", probes=probes)).run("ready", 30.0)
    assert document["ready"]


async def test_a_server_that_turns_mute_is_replaced(running: Start) -> None:
    run = tiny("mute")
    supervisor = await running(run, watch_s=0.02)
    await supervisor.wait_ready(30.0)
    await ask(run.port, "/mute")
    await until(lambda: service_of(supervisor, "mute")["restarts"] == 1)
    assert (
        "3 liveness probes in a row failed: GET /health: 503"
        in (service_of(supervisor, "mute")["last_failure"]["summary"])
    )


async def test_one_service_can_be_stopped_and_started_again(running: Start) -> None:
    supervisor = await running(tiny("one"), tiny("two"))
    await supervisor.wait_ready(30.0)
    supervisor.stop("one")
    await until(lambda: state_of(supervisor, "one") == "STOPPED")
    assert (state_of(supervisor, "two"), supervisor.readiness()["ready"]) == ("SERVING", False)
    supervisor.restart("one")
    await supervisor.wait_ready(30.0)
    assert (service_of(supervisor, "one")["attempt"], service_of(supervisor, "one")["restarts"]) == (2, 0)


async def test_requires_withdraws_readiness_while_the_other_restarts(running: Start) -> None:
    supervisor = await running(tiny("llm"), tiny("embed", requires=("llm",)))
    await supervisor.wait_ready(30.0)
    supervisor.restart("llm")
    assert supervisor.readiness()["services"]["embed"] == {"ready": False, "state": "SERVING"}
    await supervisor.wait_ready(30.0)
    assert supervisor.readiness()["services"]["embed"]["ready"]


async def test_an_unknown_service_is_named_with_the_nearest(running: Start) -> None:
    supervisor = await running(tiny("embed"))
    with pytest.raises(ToolkitError, match=r"no service 'embd'.*Did you mean 'embed'"):
        supervisor.stop("embd")


async def test_a_stop_request_ends_a_run_in_the_foreground(state_dir: Path) -> None:
    supervisor = supervise(state_dir, tiny("front"))
    task = asyncio.create_task(supervisor.run())
    await until(lambda: state_of(supervisor, "front") == "SERVING")
    supervisor.request_stop()
    document = await task
    assert (document["ready"], document["services"][0]["state"]) == (False, "STOPPED")


async def test_a_second_stop_request_kills_at_once(state_dir: Path) -> None:
    supervisor = supervise(state_dir, tiny("second", "ignore-term", grace_s=60.0))
    task = asyncio.create_task(supervisor.run())
    await until(lambda: state_of(supervisor, "second") == "SERVING")
    supervisor.request_stop()
    await asyncio.sleep(0.05)
    assert state_of(supervisor, "second") == "DRAINING"
    supervisor.request_stop()
    await asyncio.wait_for(task, 10.0)
    assert carriers("second") == []


async def test_a_run_in_the_foreground_ends_when_all_have_failed(state_dir: Path) -> None:
    with pytest.raises(ToolkitError, match="'lost' failed"):
        await supervise(state_dir, tiny("lost", "exit-early", restart=Restart(max_restarts=0))).run()


async def test_an_interrupted_start_is_taken_down(state_dir: Path) -> None:
    supervisor = supervise(state_dir, tiny("interrupted", "hang", grace_s=0.5))
    task = asyncio.create_task(supervisor.run("ready", 60.0))
    await until(lambda: state_of(supervisor, "interrupted") == "PRELOAD")
    supervisor.request_stop()
    document = await task
    assert document["ready"] is False
    assert carriers("interrupted") == []


async def test_a_cancelled_run_leaves_nothing(state_dir: Path) -> None:
    supervisor = supervise(state_dir, tiny("cancelled", "ignore-term", grace_s=60.0))
    task = asyncio.create_task(supervisor.run())
    await until(lambda: state_of(supervisor, "cancelled") == "SERVING")
    task.cancel()
    await until(lambda: state_of(supervisor, "cancelled") == "DRAINING")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: carriers("cancelled") == [])


async def test_every_attempt_has_its_reservation_before_its_process(running: Start) -> None:
    carried: list[int] = []
    supervisor = await running(tiny("held"), reserve=lambda run: carried.append(len(carriers(run.name))))
    await supervisor.wait_ready(30.0)
    supervisor.restart("held")
    await until(lambda: supervisor._instances["held"].attempt == 2)
    await supervisor.wait_ready(30.0)
    assert carried == [0, 0]


async def test_the_start_lock_of_a_gpu_is_held_until_it_serves(state_dir: Path) -> None:
    told: list[Any] = []

    @contextlib.asynccontextmanager
    async def gpu_starts(uuids: Any, *, waiting: Any) -> Any:
        waiting(7, 0.2)
        waiting(7, 0.4)
        told.append((sorted(uuids), len(carriers("locked"))))
        yield
        told.append(len(carriers("locked")))

    gpus = ({"uuid": "GPU-a", "index": 0, "budget_mib": 1},)
    await supervise(state_dir, tiny("locked", gpus=gpus), gpu_starts=gpu_starts).run("ready", 30.0)
    assert told == [(["GPU-a"], 0), 1, (["GPU-a"], 1), 0], "the stop takes it too"
    notes = [event["text"] for event in read_events(state_dir / "events.jsonl") if event["kind"] == "log"]
    assert notes == ["waits while pid 7 starts on its GPU"]


async def test_a_failed_start_lets_the_gpu_go(state_dir: Path) -> None:
    held: list[str] = []

    @contextlib.asynccontextmanager
    async def gpu_starts(uuids: Any, *, waiting: Any) -> Any:
        held.append("taken")
        yield
        held.append("let go")

    with pytest.raises(ToolkitError):
        await supervise(state_dir, tiny("fails", "exit-early"), gpu_starts=gpu_starts).run("ready", 30.0)
    assert held == ["taken", "let go"] * 3


async def test_a_refused_reservation_is_told(state_dir: Path) -> None:
    def reserve(run: Any) -> None:
        raise ToolkitError("GPU-a is held by 'other'", hint="Stop it.", code="reserved")

    with pytest.raises(ToolkitError, match="'a' failed: GPU-a is held by 'other'") as caught:
        await supervise(state_dir, tiny("a"), reserve=reserve).run("ready", 30.0)
    assert caught.value.hint == "Stop it."


async def test_a_fault_of_coexist_itself_is_not_retried_for_ever(state_dir: Path) -> None:
    def wrap(argv: Any, cpus: Any, memory_policy: Any) -> Any:
        raise ZeroDivisionError

    with pytest.raises(ToolkitError, match="a fault of coexist itself: ZeroDivisionError"):
        await supervise(state_dir, tiny("a"), wrap=wrap).run("ready", 30.0)


async def test_the_wrapper_gets_cpus_and_memory_policy(state_dir: Path) -> None:
    seen: list[Any] = []

    def wrap(argv: Any, cpus: Any, memory_policy: Any) -> Any:
        seen.append((cpus, memory_policy))
        return argv

    await supervise(state_dir, tiny("a", cpus=(0, 1), memory_policy="bind"), wrap=wrap).run("ready", 30.0)
    assert seen == [((0, 1), "bind")]


async def test_a_full_disk_in_the_state_folder_stops_no_service(
    running: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor = await running(tiny("disk"))
    await supervisor.wait_ready(30.0)

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("toolkit.supervise.state.StateFolder.append_event", full)
    monkeypatch.setattr("toolkit.supervise.state.publish", full)
    supervisor.restart("disk")
    await until(lambda: service_of(supervisor, "disk")["attempt"] == 2)
    await supervisor.wait_ready(30.0)


async def test_changes_are_told(state_dir: Path) -> None:
    seen: list[str] = []
    supervisor = supervise(state_dir, tiny("a"), on_change=lambda it: seen.append(state_of(it, "a")))
    await supervisor.run("ready", 30.0)
    assert list(dict.fromkeys(seen)) == ["INIT", "PRELOAD", "PRIME", "SERVING", "DRAINING", "STOPPED"]


async def test_what_a_start_does_or_waits_for_is_told(running: Start) -> None:
    supervisor = await running(tiny("slow", "hang"), tiny("embed", after=("slow",)))
    await until(lambda: supervisor.activity().get("slow"))
    assert supervisor.activity() == {"slow": "GET /health: nothing listens yet", "embed": "waits for slow"}
    assert (supervisor.waiting(), supervisor.resting()) == ({"embed"}, set())
    supervisor.stop("embed")
    assert (supervisor.waiting(), supervisor.resting()) == (set(), {"embed"})
    assert supervisor.progress()["slow"].stage == "PRELOAD"


async def test_a_watcher_that_breaks_does_not_break_the_services(state_dir: Path) -> None:
    def broken(_: Supervisor) -> None:
        raise ZeroDivisionError

    assert (await supervise(state_dir, tiny("a"), on_change=broken).run("ready", 30.0))["ready"]


SUPERVISOR_ALONE = """
import asyncio, sys
from pathlib import Path
from tests.supervise.conftest import supervise, tiny
supervisor = supervise(Path(sys.argv[1]), tiny("alone", "setsid-grandchild", "ignore-term"))
asyncio.run(supervisor.run())
"""


async def test_kill_9_of_the_supervisor_leaves_nothing_and_a_new_one_can_start(state_dir: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", SUPERVISOR_ALONE, str(state_dir)]) as alone:
        await until(lambda: _is_serving(state_dir))
        assert len(carriers("alone")) == 2
        alone.kill()
        alone.wait()
    await until(lambda: carriers("alone") == [], limit_s=5.0)
    assert (state_dir / "supervisor.json").exists()
    assert (await supervise(state_dir, tiny("alone")).run("ready", 30.0))["ready"]


def _is_serving(state_dir: Path) -> bool:
    try:
        return bool(json.loads((state_dir / "status.json").read_text())["ready"])
    except (OSError, ValueError):
        return False


async def test_kill_9_of_supervisor_and_guardian_is_tidied_up_by_the_next_start(state_dir: Path) -> None:
    leftover = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)"],
        env={"COEXIST_COOKIE": f"old{RUN}.llm.1"},
        start_new_session=True,
    )
    state_dir.mkdir()
    (state_dir / "supervisor.json").write_text(
        json.dumps({"deployment": "tiny", "pid": 1, "start_ticks": 1, "cookie": f"old{RUN}"})
    )
    await supervise(state_dir, tiny("next")).run("ready", 30.0)
    assert leftover.poll() is not None


async def test_two_supervisors_of_one_deployment_cannot_run(running: Start, state_dir: Path) -> None:
    await running(tiny("first"))
    with pytest.raises(ToolkitError, match="'tiny' already runs"):
        await supervise(state_dir, tiny("again")).run("ready", 30.0)


async def test_many_restarts_leak_no_descriptors_and_no_processes(running: Start) -> None:
    supervisor = await running(tiny("cycles"))
    await supervisor.wait_ready(30.0)
    descriptors = 0
    for attempt in range(2, 8):
        supervisor.restart("cycles")
        await until(lambda attempt=attempt: service_of(supervisor, "cycles")["attempt"] == attempt)  # type: ignore[misc]
        await supervisor.wait_ready(30.0)
        assert len(carriers("cycles")) == 1
        descriptors = descriptors or _open_descriptors()
    await until(lambda: _open_descriptors() <= descriptors)


def _open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_a_service_that_is_not_required_does_not_hold_readiness_back(state_dir: Path) -> None:
    extra = tiny("extra", "exit-early", required=False, restart=Restart(max_restarts=0))
    assert (await supervise(state_dir, extra, tiny("main")).run("ready", 30.0))["ready"]


async def test_while_it_serves_the_port_answers(running: Start) -> None:
    run = tiny("answers")
    supervisor: Supervisor = await running(run)
    await supervisor.wait_ready(30.0)
    assert await ask(run.port, HELLO.path) == 200
    await supervisor.close()
    assert answer(run.port, HELLO.path) == 0


async def test_a_flooding_log_is_rotated_while_its_service_runs(
    running: Start, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolkit.supervise.logs.MAX_BYTES", 100_000)
    supervisor = await running(tiny("flood", "flood"))
    await supervisor.wait_ready(30.0)
    await until((state_dir / "logs" / "flood.log.1").exists)
    assert state_of(supervisor, "flood") == "SERVING"


async def test_where_each_attempt_begins_in_the_log_is_told_and_judged_alone(state_dir: Path) -> None:
    seen: list[Outcome] = []

    def diagnose(outcome: Outcome) -> Failure:
        seen.append(outcome)
        return Failure("ended", "retry" if len(seen) == 1 else "stop")

    with pytest.raises(ToolkitError, match="ended"):
        await supervise(state_dir, tiny("twice", "exit-early"), diagnose=diagnose).run("ready", 30.0)
    told = [event for event in read_events(state_dir / "events.jsonl") if event["kind"] == "spawned"]
    starts = [event["log_start_bytes"] for event in told]
    assert [event["attempt"] for event in told] == [1, 2]
    assert starts[0] == 0 < starts[1] == StateFolder(state_dir).last_start_bytes("twice")
    assert [outcome.log.start_bytes for outcome in seen] == starts
    assert [outcome.exit_status is not None and outcome.compiling is None for outcome in seen] == [True, True]


async def test_a_failure_is_told_with_its_class_and_the_line_that_decides(state_dir: Path) -> None:
    def diagnose(outcome: Outcome) -> Failure:
        return Failure("a library is missing", "stop", "missing_shared_library", "libx.so", "ImportError: libx.so")

    with pytest.raises(ToolkitError) as caught:
        await supervise(state_dir, tiny("llm", "exit-early"), diagnose=diagnose).run("ready", 30.0)
    assert caught.value.details["diagnosis"] == {
        "class": "missing_shared_library",
        "verdict": "stop",
        "culprit": "libx.so",
        "line": "ImportError: libx.so",
    }


async def test_a_compiler_below_a_silent_service_is_seen(state_dir: Path, tmp_path: Path) -> None:
    seen: list[Outcome] = []

    def diagnose(outcome: Outcome) -> Failure:
        seen.append(outcome)
        return Failure("compiles", "stop")

    compiler = tmp_path / "ptxas"
    shutil.copy(shutil.which("sleep") or "/bin/sleep", compiler)
    argv = (shutil.which("sh") or "/bin/sh", "-c", f"{compiler} 60 & wait")
    run = tiny("jit", window_s=0.5)
    silent = replace(run, launch=lambda attempt: replace(run.launch(attempt), argv=argv))
    with pytest.raises(ToolkitError, match="compiles"):
        await supervise(state_dir, silent, diagnose=diagnose).run("ready", 30.0)
    assert [(each.exit_status, each.compiling) for each in seen] == [(None, True)]
