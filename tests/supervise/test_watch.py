"""What the watcher makes of a serving instance's answers, and that a broken one is started anew."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest_asyncio
from aiohttp import web

from tests.supervise.conftest import HELLO, ask, service_of, state_of, tiny, tiny_probes, until
from toolkit.runtimes.base import CanaryCheck, Generation, HttpProbe, Probes
from toolkit.supervise.lifecycle import Failure
from toolkit.supervise.logs import LogView
from toolkit.supervise.process import Usage
from toolkit.supervise.watch import CANARY_EVERY, Watcher
from toolkit.warm import Target

Start = Callable[..., Any]
PERIOD_S = 0.1


@dataclass
class Tree:
    """As ``process.Tree`` is used here."""

    cpu_s: float = 0.0

    def members(self) -> list[Any]:
        return []

    def usage(self) -> Usage:
        return Usage(0, self.cpu_s)


@dataclass
class Clock:
    now_s: float = 0.0

    def now(self) -> float:
        self.now_s += 1.0
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@dataclass
class Server:
    """Answers as it is told; ``tokens`` is what its metrics page counts."""

    status: int = 200
    body: Any = field(default_factory=lambda: {"choices": [{"text": " Paris", "finish_reason": "length"}]})
    sleep_s: float = 0.0
    tokens: float | None = None
    asked: list[dict[str, Any]] = field(default_factory=list)

    async def complete(self, request: web.Request) -> web.Response:
        self.asked.append(await request.json())
        await asyncio.sleep(self.sleep_s)
        return web.json_response(self.body, status=self.status)

    async def metrics(self, _: web.Request) -> web.Response:
        if self.tokens is not None:
            return web.Response(text=f"generated_tokens_total {self.tokens}\n")
        return web.Response(status=404)


@dataclass
class Scene:
    server: Server
    tree: Tree
    watcher: Watcher

    async def ask(self, times: int = 1) -> Failure | None:
        failure = None
        for _ in range(times):
            failure = await self.watcher.ask(PERIOD_S)
        return failure


CANARY = CanaryCheck("The capital of France is", 4, expected_text=" Paris")


@pytest_asyncio.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    server, tree = Server(), Tree()
    app = web.Application()
    app.add_routes([web.post("/v1/completions", server.complete), web.get("/metrics", server.metrics)])
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await (site := web.TCPSite(runner, "127.0.0.1", 0)).start()
    port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
    generation = Generation("completions", "/v1/completions", "m", 64)
    probes = Probes(None, generation=generation, canary=CANARY, metrics=HttpProbe("/metrics"))
    async with aiohttp.ClientSession() as http:
        target = Target(f"http://127.0.0.1:{port}", probes)
        watcher = Watcher(target, http, tree, LogView(tmp_path / "log", 0), Clock())  # type: ignore[arg-type]
        yield Scene(server, tree, watcher)
    await runner.cleanup()


async def test_a_program_with_a_generation_alone_is_asked_for_one_token(scene: Scene) -> None:
    assert await scene.ask() is None
    assert [body["max_tokens"] for body in scene.server.asked] == [1]


async def test_at_a_lower_rate_the_canary_is_asked(scene: Scene) -> None:
    assert await scene.ask(2 * CANARY_EVERY) is None
    asked = [body["prompt"] for body in scene.server.asked]
    assert [index + 1 for index, prompt in enumerate(asked) if prompt == CANARY.prompt] == [10, 20]


async def test_a_wrong_canary_after_ready_is_asked_again_and_then_broken(scene: Scene) -> None:
    await scene.ask(CANARY_EVERY - 1)
    scene.server.body = {"choices": [{"text": " London", "finish_reason": "length"}]}
    failure = await scene.ask(3)
    assert failure is not None
    assert failure.summary == "3 canaries in a row failed: expected 'Paris', got 'London'"


async def test_200_with_a_failing_generation_is_broken(scene: Scene) -> None:
    for body in ({"error": {"message": "CUDA error"}}, {"choices": []}, [], {"choices": [{"text": ""}]}):
        scene.server.body = body
        assert await scene.ask(2) is None
        failure = await scene.ask()
        assert failure is not None
        assert failure.kind == "not_live"
        scene.server.body = Server().body
        assert await scene.ask() is None


async def test_503_for_ever_is_broken(scene: Scene) -> None:
    scene.server.status = 503
    failure = await scene.ask(3)
    assert failure is not None
    assert "503" in failure.summary


async def test_429_is_busy_while_tokens_advance_and_broken_when_nothing_does(scene: Scene) -> None:
    scene.server.status, scene.server.tokens = 429, 0
    for _ in range(10):
        scene.server.tokens += 1
        assert await scene.ask() is None
    failure = await scene.ask(4)
    assert failure is not None
    assert failure.kind == "stalled"


async def test_a_time_out_is_busy_while_the_processors_work(scene: Scene) -> None:
    scene.server.sleep_s = 5.0
    for _ in range(4):
        scene.tree.cpu_s += 100.0
        assert await scene.ask() is None
    failure = await scene.ask(3)
    assert failure is not None
    assert failure.kind == "stalled"
    assert failure.summary.startswith("no answer and no progress over 3 deep probes")


async def test_in_doubt_the_next_question_comes_sooner(scene: Scene) -> None:
    assert scene.watcher.deep_pause_s(30.0, 0.5) == 30.0
    scene.server.status = 500
    await scene.ask()
    assert scene.watcher.deep_pause_s(30.0, 0.5) == 5.0


async def test_503_for_ever_after_ready_starts_it_anew(running: Start) -> None:
    run = tiny("mute", probes=tiny_probes(live=None))
    supervisor = await running(run, deep_s=0.2)
    await supervisor.wait_ready(20.0)
    await ask(run.port, "/mute")
    await until(lambda: service_of(supervisor, "mute")["attempt"] == 2)
    await until(lambda: state_of(supervisor, "mute") == "SERVING")
    failure = service_of(supervisor, "mute")["last_failure"]
    assert failure["state"] == "SERVING"
    assert "in a row failed: GET /hello: 503" in failure["summary"]


async def test_200_with_a_wrong_answer_after_ready_starts_it_anew(running: Start) -> None:
    run = tiny("babble", probes=tiny_probes(generation=Generation("request", "/hello", request=HELLO)))
    supervisor = await running(run, deep_s=0.2)
    await supervisor.wait_ready(20.0)
    await ask(run.port, "/babble")
    await until(lambda: service_of(supervisor, "babble")["attempt"] == 2)
    failure = service_of(supervisor, "babble")["last_failure"]
    assert "does not contain 'hello'" in failure["summary"]
    await until(lambda: state_of(supervisor, "babble") == "SERVING")
