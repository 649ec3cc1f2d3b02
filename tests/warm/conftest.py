"""A small real server that answers as told, and a clock that only it and the warm-up's own sleeps move."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from toolkit.runtimes.base import CanaryCheck, Generation, HttpProbe, Probes
from toolkit.warm import Progress, Target, session

TOKEN = "token-of-this-attempt"
HEADERS = {"X-Coexist-Token": TOKEN}


class FakeClock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def now(self) -> float:
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        await asyncio.sleep(0)


class Server:
    """An engine server whose every answer a test may change. ``times_ms[i]`` is how long completion ``i`` takes."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.base_url = ""
        self.asked: list[tuple[str, Any, dict[str, str]]] = []
        self.text = " Paris."
        self.token_ids: list[int] | None = None
        self.times_ms: list[float] = []
        self.default_ms = 40.0
        self.streams = 0
        self.stage = {"stage": "loaded", "parts": {"weights": 0.2}, "bytes_read": 7, "compile_events": 3}
        self.compile_on: set[int] = set()
        self.before: Callable[[web.Request], Awaitable[web.StreamResponse | None]] | None = None
        self.events: Callable[[], list[bytes | float]] | None = None
        self.statuses: list[int] = []

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.json() if request.can_read_body else None
        self.asked.append((request.path, body, dict(request.headers)))
        if self.before is not None and (early := await self.before(request)) is not None:
            return early
        if request.path == "/v1/stage":
            return web.json_response(self.stage)
        if request.path == "/v1/warmup":
            return web.json_response({"keys": ["prefill:64", "decode:1", "decode:1"], "ran": 3, "seconds": 0.1})
        if request.path == "/v1/completions":
            return await self.complete(request, body)
        return web.json_response({"ok": True})

    async def complete(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        if self.statuses and (status := self.statuses.pop(0)) != 200:
            return web.Response(status=status, text=f"refused, token {TOKEN}")
        if not body["stream"]:
            choice = {"text": self.text, "finish_reason": "length"}
            return web.json_response({"choices": [choice | ({"token_ids": self.token_ids} if self.token_ids else {})]})
        index, self.streams = self.streams, self.streams + 1
        if index in self.compile_on:
            self.stage["compile_events"] += 1
        self.clock.now_s += (self.times_ms[index] if index < len(self.times_ms) else self.default_ms) / 1000
        return await self.stream(request)

    async def stream(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for event in self.events() if self.events else [delta(" a"), delta(" b", finish="length"), DONE]:
            if isinstance(event, float):
                self.clock.now_s += event
            else:
                await response.write(event)
        await response.write_eof()
        return response

    def bodies(self, path: str) -> list[Any]:
        return [body for asked, body, _ in self.asked if asked == path]


DONE = b"data: [DONE]\n\n"


def delta(text: str, finish: str | None = None) -> bytes:
    return b"data: " + json.dumps({"choices": [{"text": text, "finish_reason": finish}]}).encode() + b"\n\n"


def engine_probes(**changes: Any) -> Probes:
    known: dict[str, Any] = {
        "loaded": HttpProbe("/v1/stage"),
        "stage": HttpProbe("/v1/stage"),
        "warmup": (HttpProbe("/v1/warmup", "POST", {"mode": "full"}, HEADERS),),
        "canary": CanaryCheck("The capital of France is", 8, expected_text=" Paris"),
        "generation": Generation("completions", "/v1/completions", "tiny", 64, headers=HEADERS),
        "register": HttpProbe("/v1/register", "POST", headers=HEADERS),
        "drain": HttpProbe("/v1/drain", "POST", headers=HEADERS),
    }
    return Probes(**{**known, **changes})


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def server(clock: FakeClock) -> AsyncIterator[Server]:
    behaviour = Server(clock)
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", behaviour.handle)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    behaviour.base_url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield behaviour
    await runner.cleanup()


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with session() as made:
        yield made


@pytest.fixture
def target(server: Server) -> Callable[..., Target]:
    def make(**changes: Any) -> Target:
        return Target(server.base_url, engine_probes(**changes))

    return make


@pytest.fixture
def told() -> list[Progress]:
    return []
