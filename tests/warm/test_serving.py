from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from aiohttp import web

from tests.warm.conftest import TOKEN, Server
from toolkit.runtimes.base import HttpProbe
from toolkit.warm import Proof, Target, WarmupError, drain, first_request, register
from toolkit.warm.prompts import probe_lengths
from toolkit.warm.serving import QUIET_S, STEADY_REQUESTS

Make = Callable[..., Target]
PROOF = Proof(None, (), None, None, None, (), 0.0)


async def test_the_first_request_is_anybodys_and_of_an_unseen_length(server: Server, target: Make, http, clock):
    server.times_ms = [90]
    first = await first_request(target(), http, PROOF, clock)
    assert (first.ms, first.p50_ms, first.p99_ms) == (pytest.approx(90), pytest.approx(40), pytest.approx(40))
    bodies = server.bodies("/v1/completions")
    assert len(bodies) == 1 + STEADY_REQUESTS
    lengths = {len(body["prompt"].split()) for body in bodies}
    assert len(lengths) == 1
    assert lengths.isdisjoint(probe_lengths(64))
    assert len({body["prompt"] for body in bodies}) == len(bodies)
    assert not any("X-Coexist-Token" in headers for _, _, headers in server.asked)


async def test_steady_requests_find_the_server_as_quiet_as_the_first_one(server: Server, target: Make, http, clock):
    pauses, sleep = [], clock.sleep

    async def slept(seconds: float) -> None:
        pauses.append((seconds, len(server.bodies("/v1/completions"))))
        await sleep(seconds)

    clock.sleep = slept
    await first_request(target(), http, PROOF, clock)
    before_each = [sent for seconds, sent in pauses if seconds == QUIET_S]
    assert before_each == list(range(1 + STEADY_REQUESTS))


async def test_without_generation_the_first_request_is_unknown(server: Server, target: Make, http, clock):
    first = await first_request(target(generation=None), http, PROOF, clock)
    assert (first.ms, first.p50_ms, first.p99_ms) == (None, None, None)


async def test_register_and_drain_carry_the_token(server: Server, target: Make, http):
    await register(target(), http)
    await drain(target(), http, 5)
    assert [(path, headers["X-Coexist-Token"]) for path, _, headers in server.asked] == [
        ("/v1/register", TOKEN),
        ("/v1/drain", TOKEN),
    ]


async def test_a_program_without_them_is_left_alone(server: Server, target: Make, http):
    await register(target(register=None, drain=None), http)
    await drain(target(register=None, drain=None), http, 5)
    assert server.asked == []


async def test_a_refused_registration_is_one_line(server: Server, target: Make, http):
    async def refuse(_: web.Request) -> web.Response:
        return web.Response(status=403, text=f"wrong\ntoken {TOKEN}")

    server.before = refuse
    with pytest.raises(WarmupError) as caught:
        await register(target(), http)
    assert (caught.value.code, caught.value.what) == (
        "request_failed",
        "POST /v1/register: 403 Forbidden: wrong token ***",
    )


async def test_a_drain_that_takes_too_long_is_given_up(target: Make, http):
    slow = Target("http://127.0.0.1:9", target().probes)
    with pytest.raises(WarmupError, match="nothing listens"):
        await drain(slow, http, 0.05)


async def test_the_drain_time_out_replaces_the_probes_own(server: Server, target: Make, http):
    over = asyncio.Event()

    async def hang(_: web.Request) -> None:
        await over.wait()

    server.before = hang
    with pytest.raises(WarmupError, match=r"no whole answer within 0\.05 s"):
        await drain(target(drain=HttpProbe("/v1/drain", "POST", timeout_s=100)), http, 0.05)
    over.set()
