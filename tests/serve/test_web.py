"""The servers as processes: ports, signals, and what a person sees when a start fails."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import ClientError, ClientSession

from tests.serve.fakes import TOKEN, write_tokenizer
from tests.serve.small_models import write_bert
from toolkit.errors import ToolkitError
from toolkit.serve.web import bind

ROOT = Path(__file__).parents[2]
RUN = ROOT / "toolkit" / "serve" / "run.py"
HEADERS = {"X-Coexist-Token": TOKEN}


class Program:
    """A server process; ``log`` is what it wrote to standard error so far."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.log = ""

    async def read_until(self, pattern: str) -> re.Match[str]:
        assert self.process.stderr is not None
        while (found := re.search(pattern, self.log)) is None:
            line = await asyncio.wait_for(self.process.stderr.readline(), 60)
            assert line, f"ended without '{pattern}':\n{self.log}"
            self.log += line.decode()
        return found

    async def url(self) -> str:
        found = await self.read_until(r"listening on (127\.0\.0\.1:\d+)")
        return f"http://{found[1]}"

    async def ended(self) -> int:
        assert self.process.stderr is not None
        self.log += (await asyncio.wait_for(self.process.stderr.read(), 60)).decode()
        return await asyncio.wait_for(self.process.wait(), 60)


@contextlib.asynccontextmanager
async def program(*argv: str) -> AsyncIterator[Program]:
    environment = {**os.environ, "COEXIST_TOKEN": TOKEN, "PYTHONPATH": str(ROOT)}
    process = await asyncio.create_subprocess_exec(
        sys.executable, *argv, stderr=asyncio.subprocess.PIPE, env=environment, cwd=ROOT
    )
    try:
        yield Program(process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def engine_argv(folder: Path) -> tuple[str, ...]:
    write_tokenizer(folder)
    return ("-m", "tests.serve.slow_engine_server", "--engine-dir", str(folder), "--port", "0", "--device", "cpu")


async def registered(server: Program) -> str:
    url = await server.url()
    await server.read_until("preload -> loaded")
    async with ClientSession(url) as session, session.post("/v1/register", headers=HEADERS) as answer:
        assert answer.status == 200
    return url


async def ask(url: str, text: str = "x" * 40) -> tuple[int, str]:
    body = {"prompt": text, "max_tokens": 60, "temperature": 0}
    async with ClientSession(url) as session, session.post("/v1/completions", json=body) as answer:
        return answer.status, (await answer.json())["choices"][0]["text"]


async def test_sigterm_lets_requests_end_and_exits_0(tmp_path: Path) -> None:
    async with program(*engine_argv(tmp_path)) as server:
        url = await registered(server)
        requests = [asyncio.create_task(ask(url)) for _ in range(3)]
        async with ClientSession(url) as session:
            while True:
                async with session.get("/v1/stage") as answer:
                    if (await answer.json())["in_flight"] == 3:
                        break
        server.process.terminate()
        assert await asyncio.gather(*requests) == [(200, "x" * 40)] * 3
        assert await server.ended() == 0
    assert "draining 3 requests" in server.log
    assert "Traceback" not in server.log
    assert TOKEN not in server.log


async def test_a_second_sigterm_ends_at_once(tmp_path: Path) -> None:
    async with program(*engine_argv(tmp_path)) as server:
        url = await registered(server)
        request = asyncio.create_task(ask(url))
        await asyncio.sleep(0.1)
        server.process.terminate()
        await server.read_until("draining")
        server.process.terminate()
        assert await server.ended() == -signal.SIGTERM
        with pytest.raises(ClientError):
            await request


async def test_sigterm_while_loading_exits_0(tmp_path: Path) -> None:
    argv = (str(RUN), "frontend", "--model-dir", str(write_bert(tmp_path)), "--port", "0", "--device", "cpu")
    async with program(*argv) as server:
        await server.url()
        server.process.terminate()
        assert await server.ended() == 0
    assert "Traceback" not in server.log


async def test_the_port_answers_503_while_the_model_loads_and_the_encoder_serves_after(tmp_path: Path) -> None:
    argv = (str(RUN), "frontend", "--model-dir", str(write_bert(tmp_path)), "--port", "0", "--device", "cpu")
    async with program(*argv) as server, ClientSession(await server.url()) as session:
        async with session.get("/health") as answer:
            assert (answer.status, await answer.json()) == (503, {"stage": "preload"})
        await registered(server)
        async with session.post("/v1/embeddings", json={"input": "w1"}) as answer:
            assert answer.status == 200
        server.process.send_signal(signal.SIGINT)
        assert await server.ended() == 0


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--attention", "fa2"), "attention 'fa2' cannot be used here"),
        (("--model-dir", "/nowhere/at/all"), "there is no such folder"),
    ],
)
async def test_a_failing_start_is_one_clear_line_and_exit_1(tmp_path: Path, flags: tuple[str, ...], says: str) -> None:
    argv = (str(RUN), "frontend", "--model-dir", str(write_bert(tmp_path)), "--port", "0", "--device", "cpu", *flags)
    async with program(*argv) as server:
        assert await server.ended() == 1
    assert says in server.log
    assert "Traceback" not in server.log


async def test_a_port_in_use_is_one_clear_line_and_exit_1(tmp_path: Path) -> None:
    with bind("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        async with program(str(RUN), "engine", "--engine-dir", str(tmp_path), "--port", str(port)) as server:
            assert await server.ended() == 1
    assert f"127.0.0.1:{port}: the port is in use" in server.log
    assert "Traceback" not in server.log


@pytest.mark.parametrize("flags", [("--port", "70000"), ("--memory-fraction", "2"), ("--device", "tpu"), ()])
async def test_wrong_flags_are_a_usage_error(flags: tuple[str, ...]) -> None:
    async with program(str(RUN), "frontend", *flags) as server:
        assert await server.ended() == 2
    assert "usage:" in server.log


def test_an_address_that_is_not_ours_is_told() -> None:
    with pytest.raises(ToolkitError, match="cannot listen there"):
        bind("192.0.2.1", 0)


def test_a_listening_socket_is_bound_where_asked() -> None:
    with bind("127.0.0.1", 0) as listener:
        assert listener.getsockname()[0] == "127.0.0.1"
        with socket.create_connection(listener.getsockname()):
            pass
