from __future__ import annotations

import asyncio

import aiohttp
import pytest
from aiohttp import web

from tests.ports import free_port
from toolkit.bench import load
from toolkit.runtimes.base import Generation, HttpProbe, Probes
from toolkit.supervise.clock import SystemClock
from toolkit.warm import Target


async def served(handler, generation, seconds=0.3, concurrency=3):
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    port = free_port()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    target = Target(f"http://127.0.0.1:{port}", Probes(loaded=None, generation=generation))
    try:
        async with aiohttp.ClientSession() as http:
            return await load.run(target, http, SystemClock(), seconds, concurrency)
    finally:
        await runner.cleanup()


async def test_each_token_of_a_stream_is_counted_and_no_more_clients_than_asked_run():
    running, most = 0, 0

    async def handler(request):
        nonlocal running, most
        running += 1
        most = max(most, running)
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await answer.prepare(request)
        for _ in range(3):
            await asyncio.sleep(0.01)
            await answer.write(b'data: {"choices": [{"text": "a"}]}\n\n')
        await answer.write(b"data: [DONE]\n\n")
        running -= 1
        return answer

    found = await served(handler, Generation("completions", "/v1/completions"))
    assert most == 3
    assert found.unit == "tokens"
    assert found.failed == 0
    assert len(found.arrivals_s) % 3 == 0
    assert list(found.arrivals_s) == sorted(found.arrivals_s)


@pytest.mark.parametrize("status", [429, 500])
async def test_refusals_are_counted_apart(status):
    async def handler(request):
        return web.Response(status=status)

    found = await served(handler, Generation("request", "/x", request=HttpProbe("/x")))
    assert (found.failed > 0, found.refused > 0) == (status == 500, status == 429)
    assert found.arrivals_s == ()


async def test_who_does_not_answer_is_not_waited_for_without_end(monkeypatch):
    monkeypatch.setattr(load, "ANSWER_S", 0.2)

    async def handler(request):
        await asyncio.sleep(60)

    found = await asyncio.wait_for(served(handler, Generation("completions", "/v1/completions"), 0.1), 30)
    assert (found.failed, found.arrivals_s) == (3, ())


async def test_a_service_that_nobody_can_ask_has_no_load():
    async def handler(request):
        raise AssertionError("nobody asks")

    assert await served(handler, None) is None
