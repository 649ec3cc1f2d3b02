"""The supervisor is killed: either nothing of its services is left, or the next one takes over what serves."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import pytest

from tests.ports import free_port, free_ports
from tests.supervise import keeper as keepers
from tests.supervise.conftest import ask, carriers, service_of, state_of, supervise, tiny, until
from toolkit import processes
from toolkit.errors import ToolkitError
from toolkit.processes import Identity
from toolkit.supervise import client
from toolkit.supervise.groups import Groups
from toolkit.supervise.service import ServiceRun
from toolkit.supervise.state import StateFolder, read_events

Keeper = Callable[..., ForkServerProcess]


@pytest.fixture
def keeper(state_dir: Path) -> Iterator[Keeper]:
    """Starts a supervisor in a process of its own; returns when its services are ready."""
    started: list[ForkServerProcess] = []

    def start(on_death: str, *services: str) -> ForkServerProcess:
        started.append(keepers.start(state_dir, on_death, *services))
        return started[-1]

    yield start
    for each in started:
        kill(each)


def kill(process: ForkServerProcess) -> None:
    process.kill()
    process.join()


def guardians(state_dir: Path) -> list[int]:
    owner = StateFolder(state_dir).owner()
    assert owner is not None
    words = f"COEXIST_COOKIE={owner.cookie}."
    return [pid for pid in processes.pids() if words in _command_line(pid)]


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""


async def nothing_left(who: str) -> None:
    started_s = time.monotonic()
    await until(lambda: not carriers(who), limit_s=20.0)
    assert time.monotonic() - started_s < 5.0


async def test_by_default_nothing_is_left_when_the_supervisor_is_killed(keeper: Keeper) -> None:
    process = keeper("kill", f"alone:{free_port()}:setsid-grandchild")
    assert len(carriers("alone")) == 2
    kill(process)
    await nothing_left("alone")


@pytest.mark.parametrize("order", ["guardian first", "supervisor first"])
async def test_nothing_is_left_either_when_a_guardian_is_killed_with_it(
    keeper: Keeper, state_dir: Path, order: str
) -> None:
    process = keeper("kill", f"both:{free_port()}:setsid-grandchild")
    victims = [guardians(state_dir)[0], process.pid]
    for pid in victims if order == "guardian first" else victims[::-1]:
        os.kill(pid, signal.SIGKILL)
    await nothing_left("both")


async def test_without_any_guardian_the_kernel_still_ends_the_main_processes(keeper: Keeper, state_dir: Path) -> None:
    process = keeper("kill", f"bare:{free_port()}")
    for pid in (*guardians(state_dir), process.pid):
        os.kill(pid, signal.SIGKILL)
    process.join()
    await nothing_left("bare")
    assert (owner := StateFolder(state_dir).owner()) is not None
    await supervise(state_dir, tiny("next")).run("ready", 30.0)
    assert Groups.left(owner.group, owner.cookie) is None, "what the dead left is removed by the next"


async def test_what_serves_lives_on_and_is_adopted(keeper: Keeper, state_dir: Path) -> None:
    web, plain = free_ports(2)
    kill(keeper("keep", f"kept:{web}:setsid-grandchild", f"plain:{plain}"))
    await asyncio.sleep(0.5)
    before = {who: sorted(carriers(who)) for who in ("kept", "plain")}
    assert [len(pids) for pids in before.values()] == [2, 1]
    assert await ask(web, "/hello") == 200
    supervisor = supervise(state_dir, tiny("kept", port=web), tiny("plain", port=plain), on_death="keep")
    await supervisor.start()
    await supervisor.wait_ready(30.0)
    assert {who: sorted(carriers(who)) for who in ("kept", "plain")} == before
    assert service_of(supervisor, "kept")["pid"] in before["kept"]
    assert service_of(supervisor, "kept")["canary"]["ok"]
    assert service_of(supervisor, "kept")["attempt"] == 1
    told = [event.get("text", "") for event in read_events(state_dir / "events.jsonl") if event["service"] == "kept"]
    assert any(text.startswith("adopted (pid ") for text in told)
    await supervisor.close()
    assert (carriers("kept"), carriers("plain")) == ([], [])
    assert not (state_dir / "attempts").exists()


async def test_the_end_of_an_adopted_process_is_seen_and_a_new_attempt_follows(keeper: Keeper, state_dir: Path) -> None:
    port = free_port()
    kill(keeper("keep", f"ends:{port}"))
    supervisor = supervise(state_dir, tiny("ends", port=port), on_death="keep")
    await supervisor.start()
    await supervisor.wait_ready(30.0)
    os.kill(service_of(supervisor, "ends")["pid"], signal.SIGKILL)
    await until(lambda: service_of(supervisor, "ends")["attempt"] == 2)
    await supervisor.wait_ready(30.0)
    assert "ended, unseen" in service_of(supervisor, "ends")["last_failure"]["summary"]
    await supervisor.close()
    assert carriers("ends") == []


async def test_only_what_is_unhealthy_changed_or_unwanted_is_not_kept(keeper: Keeper, state_dir: Path) -> None:
    ports = dict(zip(("well", "sick", "other", "gone"), free_ports(4), strict=True))
    kill(keeper("keep", *(f"{name}:{port}" for name, port in ports.items())))
    before = {name: carriers(name) for name in ports}
    await ask(ports["sick"], "/mute")
    wanted = [tiny(name, port=ports[name]) for name in ("well", "sick")]
    wanted.append(replace(tiny("other", port=ports["other"]), spec={"argv": "another"}))
    supervisor = supervise(state_dir, *wanted, on_death="kill")
    await supervisor.start()
    await supervisor.wait_ready(30.0)
    assert carriers("gone") == []
    assert carriers("well") == before["well"]
    assert carriers("sick") != before["sick"]
    assert carriers("other") != before["other"]
    assert [len(carriers(name)) for name in ("well", "sick", "other")] == [1, 1, 1]
    assert "not healthy" in service_of(supervisor, "sick")["last_failure"]["summary"]
    await supervisor.close()


async def test_what_was_starting_ends_with_its_supervisor(keeper: Keeper, state_dir: Path) -> None:
    process = keeper("keep", f"up:{free_port()}")
    os.kill(carriers("up")[0], signal.SIGKILL)
    await until(lambda: _attempt_of(state_dir) == 2)
    kill(process)
    await until(lambda: not guardians_of_dead(state_dir))
    left = StateFolder(state_dir).left()
    assert [record.pid for record in left.values()] == carriers("up")
    for pid in carriers("up"):
        os.kill(pid, signal.SIGKILL)


def _attempt_of(state_dir: Path) -> int:
    events = [event for event in read_events(state_dir / "events.jsonl") if event["kind"] == "spawned"]
    return int(events[-1]["attempt"])


def guardians_of_dead(state_dir: Path) -> list[int]:
    return [pid for pid in guardians(state_dir) if processes.start_time(pid)]


async def test_what_outlived_its_supervisor_is_told_and_can_be_ended(keeper: Keeper, state_dir: Path) -> None:
    kill(keeper("keep", f"lone:{free_port()}:setsid-grandchild"))
    with pytest.raises(ToolkitError, match=r"has no supervisor: lone run on without one"):
        await asyncio.to_thread(client.status, state_dir)
    await asyncio.to_thread(client.down, state_dir)
    assert carriers("lone") == []
    assert {path.name for path in state_dir.iterdir()} <= {"events.jsonl", "lock", "logs", "status.json"}
    with pytest.raises(ToolkitError, match=r"is not running\."):
        await asyncio.to_thread(client.down, state_dir)


@pytest.mark.parametrize("damaged", ["", "{", '{"a": 1}'])
async def test_who_left_it_behind_is_known_from_its_records_too(keeper: Keeper, state_dir: Path, damaged: str) -> None:
    kill(keeper("keep", f"lone:{free_port()}:setsid-grandchild"))
    StateFolder(state_dir).owner_file.write_text(damaged)
    with pytest.raises(ToolkitError, match=r"has no supervisor: lone run on without one"):
        await asyncio.to_thread(client.status, state_dir)
    await asyncio.to_thread(client.down, state_dir)
    assert carriers("lone") == []


async def test_a_supervisor_that_cannot_start_leaves_what_serves_to_the_next(keeper: Keeper, state_dir: Path) -> None:
    port = free_port()
    kill(keeper("keep", f"heir:{port}"))
    before = carriers("heir")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        other = tiny("other", port=taken.getsockname()[1])
        with pytest.raises(ToolkitError, match="in use by"):
            await supervise(state_dir, tiny("heir", port=port), other, on_death="keep").start()
    assert (carriers("heir"), list(StateFolder(state_dir).left())) == (before, ["heir"])
    await asyncio.to_thread(client.down, state_dir)
    assert carriers("heir") == []


async def test_a_stop_before_an_adopted_service_is_proven_takes_it_down(keeper: Keeper, state_dir: Path) -> None:
    port = free_port()
    kill(keeper("keep", f"early:{port}"))
    supervisor = supervise(state_dir, tiny("early", port=port), on_death="keep")
    await supervisor.start()
    await supervisor.close()
    assert carriers("early") == []


def record_of(state_dir: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((state_dir / "attempts" / f"{name}.json").read_text())
    return found


async def test_a_record_is_private_and_another_process_of_its_number_is_not_adopted(
    keeper: Keeper, state_dir: Path
) -> None:
    port = free_port()
    kill(keeper("keep", f"id:{port}"))
    file = state_dir / "attempts" / "id.json"
    assert file.stat().st_mode & 0o777 == 0o600
    record = record_of(state_dir, "id")
    assert list(StateFolder(state_dir).left()) == ["id"]
    for change in ({"start_ticks": record["start_ticks"] + 1}, {"boot_id": "another"}, {"cookie": "x.id.1"}):
        file.write_text(json.dumps({**record, **change}))
        assert StateFolder(state_dir).left() == {}, change
    file.write_text("{")
    assert StateFolder(state_dir).left() == {}
    os.kill(record["pid"], signal.SIGKILL)


async def test_the_token_of_an_adopted_attempt_and_its_grant_follow(keeper: Keeper, state_dir: Path) -> None:
    port, tokens, kept = free_port(), list[str](), list[Identity]()
    kill(keeper("keep", f"token:{port}"))
    record = record_of(state_dir, "token")
    (state_dir / "attempts/token.json").write_text(json.dumps({**record, "token": "secret"}))
    run = tiny("token", port=port)

    def launch_as(token: str) -> Any:
        tokens.append(token)
        return run.launch(1)

    def keep(_: ServiceRun, process: Identity) -> None:
        kept.append(process)

    supervisor = supervise(state_dir, replace(run, launch_as=launch_as), on_death="keep", keep=keep)
    await supervisor.start()
    await supervisor.wait_ready(30.0)
    assert (tokens, kept) == (["secret"], [Identity(record["pid"], record["start_ticks"])])
    assert "secret" not in json.dumps(supervisor.snapshot()) + (state_dir / "events.jsonl").read_text()
    await supervisor.close()


async def test_what_was_adopted_outlives_its_second_supervisor_too(keeper: Keeper, state_dir: Path) -> None:
    port = free_port()
    kill(keeper("keep", f"long:{port}"))
    before = carriers("long")
    kill(keeper("keep", f"long:{port}"))
    supervisor = supervise(state_dir, tiny("long", port=port), on_death="keep")
    await supervisor.start()
    await supervisor.wait_ready(30.0)
    assert (carriers("long"), state_of(supervisor, "long")) == (before, "SERVING")
    await supervisor.close()
