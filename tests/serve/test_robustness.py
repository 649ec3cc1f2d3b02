"""What clients get wrong, on purpose or not: always one clear answer in OpenAI's error shape, never a 500."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.serve.fakes import Client, FakeEngine, engine_serving, frontend_serving
from toolkit.serve import api
from toolkit.serve.connections import Connections, sweep

Serving = Callable[[Path], "contextlib.AbstractAsyncContextManager[Client]"]
SERVERS: dict[str, tuple[Serving, str, dict[str, Any]]] = {
    "engine": (lambda folder: engine_serving(FakeEngine(), folder), "/v1/completions", {"prompt": "hi"}),
    "frontend": (frontend_serving, "/v1/embeddings", {"input": "w1"}),
}
JSON = {"Content-Type": "application/json"}


class Case:
    """One server, a path that takes bodies, and a good body."""

    def __init__(self, client: Client, path: str, good: dict[str, Any]) -> None:
        self.client = client
        self.path = path
        self.good = good

    async def send(self, raw: Any, **headers: str) -> tuple[int, dict[str, Any]]:
        async with self.client.session.post(self.path, data=raw, headers={**JSON, **headers}) as answer:
            assert answer.content_type == "application/json", await answer.text()
            return answer.status, await answer.json()

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host, port = self.client.url.removeprefix("http://").split(":")
        return await asyncio.open_connection(host, int(port))

    async def still_answers(self) -> None:
        assert (await self.client.post(self.path, self.good))[0] == 200


@pytest.fixture(params=SERVERS)
async def case(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Case]:
    serve, path, good = SERVERS[request.param]
    async with serve(tmp_path) as client:
        yield Case(client, path, good)


def refused(answer: tuple[int, dict[str, Any]], status: int) -> str:
    """The message of a refusal in OpenAI's shape."""
    assert answer[0] == status, answer
    error = answer[1]["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return str(error["message"])


BROKEN = [
    b"", b"{", b"[]", b"null", b"5", b'"text"', b"\xff\xfe", b"\x00", b"[" * 100_000, b'{"a":' * 100_000,
    b'{"input": NaN, "prompt": NaN}', b'{"a": Infinity}', b'{"a": -Infinity}', b'{"prompt": 1' + b"0" * 5000 + b"}",
    b'{"a": 1} {"b": 2}', b'{"prompt": "\\ud800", "input": "\\ud800"}', b"{'prompt': 'x'}",
]  # fmt: skip


async def test_a_body_that_is_no_request_is_a_400_with_the_reason(case: Case) -> None:
    for raw in BROKEN:
        assert refused(await case.send(raw), 400), raw[:40]
    await case.still_answers()


async def test_a_body_that_is_too_large_is_a_413(case: Case) -> None:
    assert refused(await case.send(b'{"x": "' + b" " * api.MAX_BODY_BYTES + b'"}'), 413)
    await case.still_answers()


async def test_a_small_body_that_unpacks_to_a_large_one_is_a_413(case: Case) -> None:
    bomb = gzip.compress(b" " * (2 * api.MAX_BODY_BYTES))
    assert refused(await case.send(bomb, **{"Content-Encoding": "gzip"}), 413)
    await case.still_answers()


async def test_a_packed_body_is_read_and_a_broken_one_refused(case: Case) -> None:
    packed = gzip.compress(json.dumps(case.good).encode())
    assert (await case.send(packed, **{"Content-Encoding": "gzip"}))[0] == 200
    assert refused(await case.send(b"no gzip at all", **{"Content-Encoding": "gzip"}), 400)


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"])
async def test_another_content_type_is_a_415_that_says_what_to_send(case: Case, kind: str) -> None:
    answer = await case.send(json.dumps(case.good).encode(), **{"Content-Type": kind})
    assert "application/json" in refused(answer, 415)


@pytest.mark.parametrize("kind", ["application/json; charset=utf-8", "application/problem+json", "APPLICATION/JSON"])
async def test_every_name_of_json_is_taken(case: Case, kind: str) -> None:
    assert (await case.send(json.dumps(case.good).encode(), **{"Content-Type": kind}))[0] == 200


async def test_unknown_fields_however_deep_are_ignored(case: Case) -> None:
    deep: Any = {}
    for _ in range(300):
        deep = {"a": [deep]}
    assert (await case.send(json.dumps({**case.good, "extra_body": deep, "": None}).encode()))[0] == 200


async def test_unknown_paths_and_methods_have_the_same_shape(case: Case) -> None:
    async with case.client.session.get(case.path) as answer:
        assert answer.status == 405
        assert "POST" in answer.headers["Allow"]
        assert (await answer.json())["error"]["type"] == "invalid_request_error"
    assert refused(await case.client.get("/v1/nothing"), 404)
    for method in ("DELETE", "PATCH", "OPTIONS", "PROPFIND"):
        async with case.client.session.request(method, case.path) as answer:
            assert answer.status == 405


@pytest.mark.parametrize(
    "raw",
    [b"GET\r\n\r\n", b"\x16\x03\x01\x02\x00", b"GET / HTTP/1.1\r\nHost: x\r\nA" + b"a" * 20_000 + b": b\r\n\r\n"],
)
async def test_what_is_no_http_costs_only_its_own_connection(case: Case, raw: bytes) -> None:
    reader, writer = await case.connect()
    writer.write(raw + b"\r\n")
    assert b" 400 " in (await reader.read()).split(b"\r\n", 1)[0]
    writer.close()
    await case.still_answers()


async def test_a_client_that_leaves_in_the_middle_of_its_body_costs_nothing(case: Case) -> None:
    for _ in range(5):
        _, writer = await case.connect()
        writer.write(f"POST {case.path} HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{{".encode())
        await writer.drain()
        writer.close()
    await case.still_answers()
    assert case.client.server.status.in_flight == 0


async def test_a_body_that_does_not_arrive_is_a_408(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "BODY_TIMEOUT_S", 0.05)
    reader, writer = await case.connect()
    writer.write(f"POST {case.path} HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{{".encode())
    head, _, body = (await reader.readuntil(b"}}")).partition(b"\r\n\r\n")
    assert b" 408 " in head.split(b"\r\n", 1)[0]
    assert json.loads(body)["error"]["code"] == "request_timeout"
    writer.close()
    assert case.client.server.status.in_flight == 0


async def test_connections_that_send_no_whole_head_are_closed_and_busy_ones_are_not(case: Case) -> None:
    now_s = [0.0]
    server, runner = case.client.server, case.client.runner
    assert runner is not None
    server.connections = Connections(60, lambda: now_s[0])
    silent, half = await case.connect(), await case.connect()
    half[1].write(b"POST /v1/completions HTTP/1.1\r\nHo")
    busy = await case.connect()
    busy[1].write(f"POST {case.path} HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{{".encode())
    while server.status.in_flight == 0 or runner.server is None or len(runner.server.connections) < 3:
        await asyncio.sleep(0.005)
    sweep(server.connections, runner)
    now_s[0] = 60
    sweep(server.connections, runner)
    assert [await one[0].read() for one in (silent, half)] == [b"", b""]
    assert server.status.in_flight == 1
    for _, writer in (silent, half, busy):
        writer.close()


async def test_many_silent_connections_keep_nobody_from_being_answered(case: Case) -> None:
    crowd = [await case.connect() for _ in range(200)]
    await case.still_answers()
    for _, writer in crowd:
        writer.close()
