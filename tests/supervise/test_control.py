from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest

from tests.supervise.conftest import service_of, state_of, supervise, tiny, until
from toolkit.errors import ToolkitError
from toolkit.supervise import client, control
from toolkit.supervise.control import bound_socket
from toolkit.supervise.lifecycle import ILLEGAL_ARROWS, events
from toolkit.supervise.socket_path import short_path
from toolkit.supervise.supervisor import Supervisor

Start = Callable[..., Any]


async def get(supervisor: Supervisor, path: str, method: str = "GET") -> tuple[int, str]:
    async with aiohttp.ClientSession() as http, http.request(method, f"{supervisor.address}{path}") as response:
        return response.status, await response.text()


async def test_readyz_is_200_only_while_every_required_service_serves(running: Start) -> None:
    supervisor = await running(tiny("a"), tiny("b"))
    assert (await get(supervisor, "/livez"))[0] == 200
    assert (await get(supervisor, "/readyz"))[0] == 503
    await supervisor.wait_ready(30.0)
    status, text = await get(supervisor, "/readyz")
    assert (status, json.loads(text)["ready"]) == (200, True)
    supervisor.stop("a")
    assert (await get(supervisor, "/readyz"))[0] == 503
    assert (await get(supervisor, "/readyz/a"))[0] == 503
    assert (await get(supervisor, "/readyz/b"))[0] == 200
    status, text = await get(supervisor, "/readyz/c")
    assert (status, json.loads(text)["error"]["what"]) == (404, "no service 'c'")


async def test_services_is_the_status_document(running: Start) -> None:
    supervisor = await running(tiny("a"))
    await supervisor.wait_ready(30.0)
    document = json.loads((await get(supervisor, "/v1/services"))[1])
    assert document["services"][0]["pid"] == service_of(supervisor, "a")["pid"]


@pytest.mark.parametrize("path", ["/v1/down", "/v1/services/a/stop", "/v1/services/a/restart"])
async def test_nothing_can_be_changed_over_tcp(running: Start, path: str) -> None:
    supervisor = await running(tiny("a", "hang"))
    assert (await get(supervisor, path, "POST"))[0] in (404, 405)
    assert state_of(supervisor, "a") in ("INIT", "PRELOAD")


async def test_tcp_listens_on_loopback_only(running: Start) -> None:
    supervisor = await running(tiny("a", "hang"))
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+", supervisor.address)


async def test_a_taken_control_port_is_named(running: Start, state_dir: Path) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as owner,
        pytest.raises(ToolkitError, match="cannot be bound") as caught,
    ):
        await running(tiny("a"), control_port=owner.getsockname()[1])
    assert caught.value.what.startswith("the control port ")
    assert not (state_dir / "control.sock").exists()


async def test_metrics_tell_states_moves_refusals_and_times(running: Start) -> None:
    supervisor = await running(tiny("a"))
    await supervisor.wait_ready(30.0)
    _, before = await get(supervisor, "/metrics")
    assert 'coexist_state{service="a",state="SERVING"} 1.0' in before
    assert 'coexist_transitions_total{from="PRIME",service="a",to="SERVING"} 1.0' in before
    assert 'coexist_restarts_total{service="a"} 0.0' in before
    assert 'coexist_first_token_seconds{service="a",which="first"}' in before
    assert 'coexist_stage_seconds{service="a",stage="PRELOAD"}' in before
    assert "coexist_ready 1.0" in before
    for source, target in ILLEGAL_ARROWS:
        assert f'coexist_illegal_transitions_total{{from="{source.value}",to="{target.value}"}} 0.0' in before


async def test_an_illegal_arrow_is_counted_and_written_with_its_reason(running: Start, state_dir: Path) -> None:
    supervisor = await running(tiny("a"))
    await supervisor.wait_ready(30.0)
    supervisor._post("a", events.Reserved(1))
    _, text = await get(supervisor, "/metrics")
    assert 'coexist_illegal_transitions_total{from="SERVING",to="PRELOAD"} 1.0' in text
    refused = [event for event in supervisor._folder.events() if event["kind"] == "illegal_transition"]
    assert [(event["from"], event["to"], event["attempt"]) for event in refused] == [("SERVING", "PRELOAD", 1)]
    assert refused[0]["reason"] == "'reserved' came in SERVING, which leads only to INIT"
    assert state_of(supervisor, "a") == "SERVING"


async def test_events_are_streamed_and_those_missed_come_first(running: Start, state_dir: Path) -> None:
    supervisor = await running(tiny("a"))
    await supervisor.wait_ready(30.0)

    def read() -> list[tuple[str, str]]:
        moves = []
        for event in client.events(state_dir, since_id=0):
            if event["kind"] == "transition":
                moves.append((event["from"], event["to"]))
            if event["kind"] == "transition" and event["to"] == "STOPPED":
                return moves
        return moves

    reader = asyncio.create_task(asyncio.to_thread(read))
    await asyncio.sleep(0.05)
    supervisor.stop("a")
    assert await reader == [
        ("INIT", "PRELOAD"),
        ("PRELOAD", "PRIME"),
        ("PRIME", "SERVING"),
        ("SERVING", "DRAINING"),
        ("DRAINING", "STOPPED"),
    ]


async def test_a_listener_does_not_hold_up_the_end(running: Start, state_dir: Path) -> None:
    supervisor = await running(tiny("a"))
    await supervisor.wait_ready(30.0)
    reader = asyncio.create_task(asyncio.to_thread(lambda: list(client.events(state_dir, since_id=0))))
    await until(lambda: supervisor._journal._listeners)
    await asyncio.wait_for(supervisor.close(), 10.0)
    heard = await reader
    assert heard[0]["kind"] == "deployment"


async def test_the_client_reads_restarts_and_stops_through_the_socket(running: Start, state_dir: Path) -> None:
    supervisor = await running(tiny("a"))
    await supervisor.wait_ready(30.0)
    document = await asyncio.to_thread(client.status, state_dir)
    assert document["services"][0]["state"] == "SERVING"
    await asyncio.to_thread(client.restart, state_dir, "a")
    await until(lambda: service_of(supervisor, "a")["attempt"] == 2)
    await asyncio.to_thread(client.stop, state_dir, "a")
    await until(lambda: state_of(supervisor, "a") == "STOPPED")


async def test_an_unknown_service_is_named_through_the_socket_too(running: Start, state_dir: Path) -> None:
    await running(tiny("embed"))
    with pytest.raises(ToolkitError, match=r"no service 'embd'.*Did you mean 'embed'") as caught:
        await asyncio.to_thread(client.restart, state_dir, "embd")
    assert caught.value.code == "unknown_service"


async def test_down_returns_when_nothing_is_left(running: Start, state_dir: Path) -> None:
    supervisor = await running(tiny("a"))
    await supervisor.wait_ready(30.0)
    ending = asyncio.create_task(_close_when_asked(supervisor))
    await asyncio.to_thread(client.down, state_dir)
    assert not (state_dir / "control.sock").exists()
    assert not (state_dir / "supervisor.json").exists()
    await ending
    with pytest.raises(ToolkitError, match="is not running"):
        await asyncio.to_thread(client.down, state_dir)


async def _close_when_asked(supervisor: Supervisor) -> None:
    await supervisor._until(lambda: supervisor._stopping)
    await supervisor.close()


def test_nothing_running_is_said_with_the_next_step(tmp_path: Path) -> None:
    with pytest.raises(ToolkitError) as caught:
        client.status(tmp_path / "rag")
    assert caught.value.what == "deployment 'rag' is not running"
    assert caught.value.hint == "Start it with 'coexist up CONFIG'."


def test_a_supervisor_that_died_is_said(tmp_path: Path) -> None:
    owner = {"deployment": "rag", "pid": 1, "start_ticks": 1, "cookie": "x"}
    (tmp_path / "supervisor.json").write_text(json.dumps(owner))
    with pytest.raises(ToolkitError, match=r"'rag' is not running: its supervisor \(pid 1\) died"):
        client.status(tmp_path)


def test_the_socket_is_its_owners_alone_whatever_the_umask_is(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with bound_socket(tmp_path / "control.sock") as listener:
            private = next(path for path in tmp_path.iterdir() if path.name.startswith(".control-"))
            assert stat.S_IMODE(private.stat().st_mode) == 0o700
        listener.close()
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "control.sock").stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["control.sock"]


async def test_a_socket_path_longer_than_an_address_works(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 60) / ("e" * 60)
    supervisor = supervise(deep, tiny("deep", "hang", grace_s=0.2))
    await supervisor.start()
    try:
        assert len(os.fsencode(deep / "control.sock")) > 107
        document = await asyncio.to_thread(client.status, deep)
        assert document["deployment"] == "tiny"
    finally:
        await supervisor.close()


@pytest.mark.parametrize(
    ("peer", "own", "may"), [(1000, 1000, True), (0, 1000, True), (1001, 1000, False), (1, 0, False)]
)
def test_a_deployment_obeys_its_own_user_and_root(peer: int, own: int, may: bool) -> None:
    assert control.may_control(peer, own) is may


async def test_the_kernel_tells_who_connected(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    with ours, theirs:
        assert control.peer_uid(ours) == os.geteuid()


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"{}", b'{"config": 5}', b"\xff"])
async def test_a_reload_that_names_no_file_is_refused_in_words(running: Start, state_dir: Path, body: bytes) -> None:
    await running(tiny("a", "hang", grace_s=0.2))
    with short_path(state_dir / "control.sock") as address:
        unix = aiohttp.ClientSession(connector=aiohttp.UnixConnector(address))
        async with unix as http, http.post("http://supervisor/v1/reload", data=body) as response:
            assert response.status == 400
            assert (await response.json())["error"]["code"] == "bad_request"


async def test_another_user_is_refused_even_where_the_file_lets_everybody_in(
    running: Start, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor = await running(tiny("a", "hang", grace_s=0.2))
    monkeypatch.setattr(control, "peer_uid", lambda _: 65534)
    for ask in (client.status, client.down):
        with pytest.raises(ToolkitError, match="belongs to another user"):
            await asyncio.to_thread(ask, state_dir)
    assert not supervisor.stopping


AS_NOBODY = """
import os, socket, sys
os.setgroups([]); os.setgid(65534); os.setuid(65534)
connection = socket.socket(socket.AF_UNIX)
connection.connect(sys.argv[1])
connection.sendall(b"POST /v1/down HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n")
print(connection.recv(100).decode().splitlines()[0])
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
async def test_nobody_is_refused_by_the_kernels_word(running: Start, state_dir: Path) -> None:
    supervisor = await running(tiny("a", "hang", grace_s=0.2))
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        address = f"{folder}/open.sock"
        os.link(state_dir / "control.sock", address)
        Path(address).chmod(0o666)
        argv = [sys.executable, "-I", "-S", "-c", AS_NOBODY, address]
        answer = await asyncio.to_thread(subprocess.run, argv, capture_output=True, text=True, check=True)
    assert answer.stdout.startswith("HTTP/1.1 403")
    assert not supervisor.stopping


async def test_the_supervisor_listens_on_loopback_and_nowhere_else(running: Start) -> None:
    before = _listeners()
    supervisor = await running(tiny("a", "hang", grace_s=0.2))
    new = _listeners() - before
    assert {f"http://{ip}:{port}" for ip, port in new} == {supervisor.address}


def _listeners() -> set[tuple[str, int]]:
    found = psutil.Process().net_connections("inet")
    return {tuple(each.laddr) for each in found if each.status in (psutil.CONN_LISTEN, psutil.CONN_NONE)}
