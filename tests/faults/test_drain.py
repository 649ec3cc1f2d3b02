"""Built-in servers lose no request that is in flight when they are restarted or stopped."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession

from tests.ports import free_port
from tests.serve import fakes
from tests.serve.fakes import TOKEN
from tests.serve.small_models import HIDDEN, write_bert
from tests.supervise.conftest import service_of, state_of, supervise, tiny
from toolkit.runtimes import builtin
from toolkit.runtimes.base import CanaryCheck, Generation, HttpProbe, Launch
from toolkit.runtimes.environment import TOKEN as TOKEN_NAME
from toolkit.supervise.service import ServiceRun

ROOT = Path(__file__).parents[2]
HEADERS = {builtin.TOKEN_HEADER: TOKEN}
REQUESTS = 8
TEXTS = ["w1 w2"] * 300  # one after another, so that a request takes a while
TEXT = "x" * 40
Ask = Callable[[ClientSession], Awaitable[Any]]


def run(name: str, argv: list[str], canary: CanaryCheck, generation: Generation) -> ServiceRun:
    port = free_port()
    env = {"PATH": os.defpath, "PYTHONPATH": str(ROOT), TOKEN_NAME: TOKEN, "OMP_NUM_THREADS": "1"}
    probes = builtin.probes(TOKEN, "single", canary, replace(generation, headers=HEADERS))
    words = (sys.executable, *argv, "--port", str(port), "--device", "cpu", "--served-model-name", "m")
    made = tiny(name, port=port, grace_s=60.0)
    return replace(made, launch=lambda _: Launch(words, env, probes, preload_window_s=120.0))


def engine(folder: Path) -> ServiceRun:
    """The engine server over an engine that takes its time, and says what it is told."""
    folder.mkdir()
    fakes.write_tokenizer(folder)
    argv = ["-m", "tests.serve.slow_engine_server", "--engine-dir", str(folder)]
    canary = CanaryCheck("hello", 8, expected_text="hello")
    body = {"prompt": "hello", "max_tokens": 4, "temperature": 0}
    probe = HttpProbe("/v1/completions", "POST", body, HEADERS, expect_text="hell")
    return run("llm", argv, canary, Generation("request", "/v1/completions", request=probe))


def encoder(folder: Path) -> ServiceRun:
    """The encoder of a small BERT."""
    argv = [
        str(builtin.RUN),
        "frontend",
        "--model-dir",
        str(write_bert(folder)),
        "--max-batch",
        "1",
        "--max-queue",
        "5000",
    ]
    probe = HttpProbe("/v1/embeddings", "POST", {"input": "w1"}, HEADERS, expect_text="embedding")
    return run("embed", argv, CanaryCheck(request=probe), Generation("embeddings", "/v1/embeddings", "m", 12))


async def complete(session: ClientSession) -> None:
    body = {"prompt": TEXT, "max_tokens": 60, "temperature": 0}
    async with session.post("/v1/completions", json=body) as answer:
        assert (answer.status, (await answer.json())["choices"][0]["text"]) == (200, TEXT)


async def embed(session: ClientSession) -> None:
    async with session.post("/v1/embeddings", json={"input": TEXTS}) as answer:
        assert answer.status == 200
        assert [len(each["embedding"]) for each in (await answer.json())["data"]] == [HIDDEN] * len(TEXTS)


async def in_flight(port: int, ask: Ask) -> asyncio.Task[None]:
    """Requests that the server has all taken; the task ends when all were answered as they should be."""

    async def all_of_them() -> None:
        async with ClientSession(f"http://127.0.0.1:{port}") as session:
            await asyncio.gather(*(ask(session) for _ in range(REQUESTS)))

    task = asyncio.create_task(all_of_them())
    async with ClientSession(f"http://127.0.0.1:{port}") as session:
        while True:
            assert not task.done(), "they were answered before anything was asked of the supervisor"
            async with session.get("/v1/stage") as answer:
                if (await answer.json())["in_flight"] == REQUESTS:
                    return task


@pytest.mark.slow
async def test_requests_in_flight_are_answered_when_their_server_is_restarted_or_stopped(tmp_path: Path) -> None:
    llm, encodes = engine(tmp_path / "engine"), encoder(tmp_path / "bert")
    supervisor = supervise(tmp_path / "state", llm, encodes)
    await supervisor.start()
    try:
        await supervisor.wait_ready(120.0)
        asked = [await in_flight(llm.port, complete), await in_flight(encodes.port, embed)]
        for name in ("llm", "embed"):
            supervisor.restart(name)
        await asyncio.gather(*asked)
        await supervisor._until(lambda: {service_of(supervisor, name)["attempt"] for name in ("llm", "embed")} == {2})
        await supervisor.wait_ready(120.0)
        asked = [await in_flight(llm.port, complete), await in_flight(encodes.port, embed)]
    finally:
        await supervisor.close()
    await asyncio.gather(*asked)
    assert [state_of(supervisor, name) for name in ("llm", "embed")] == ["STOPPED", "STOPPED"]
    assert [service_of(supervisor, name)["last_failure"] for name in ("llm", "embed")] == [None, None]
