from __future__ import annotations

import asyncio
from collections.abc import Callable

import aiohttp
import pytest
from aiohttp import web

from tests.warm.conftest import FakeClock, Server
from toolkit.runtimes.base import HttpProbe, LogProbe
from toolkit.warm import Progress, Target, WarmupError, wait_loaded

Make = Callable[..., Target]


async def test_parts_and_counts_come_from_the_stage_answer(server: Server, target: Make, http, clock, told):
    server.stage |= {"attention": "sdpa"}
    report = await wait_loaded(target(), http, clock, told.append)
    assert report.parts == {"context": None, "weights": 0.2, "kv_cache": None, "tokenizer": None}
    assert (report.bytes_read, report.attention, report.compile_events) == (7, "sdpa", 3)


async def test_every_change_is_told_once(server: Server, target: Make, http, clock, told: list[Progress]):
    stages = [("preload", 0), ("preload", 0), ("preload", 5), ("preload", 5), ("loaded", 7)]

    async def move(_: web.Request) -> None:
        if stages:
            server.stage["stage"], server.stage["bytes_read"] = stages.pop(0)

    server.before = move
    await wait_loaded(target(), http, clock, told.append)
    assert [progress.done for progress in told] == [0, 5, 7]
    assert [progress.what for progress in told] == ["done: weights", "done: weights", "loaded"]


async def test_nobody_listening_yet_is_waited_for(http, clock: FakeClock, told: list[Progress], server, target: Make):
    closed = Target("http://127.0.0.1:9", target().probes)
    with pytest.raises(WarmupError) as caught:
        await wait_loaded(closed, http, clock, told.append, timeout_s=3)
    assert caught.value.code == "loaded_timeout"
    assert caught.value.what == "not loaded in time; last: GET /v1/stage: nothing listens yet"
    assert clock.now_s >= 103


async def test_503_for_ever_never_counts_as_loaded(server: Server, target: Make, http, clock, told):
    async def refuse(_: web.Request) -> web.Response:
        return web.Response(status=503, text="loading")

    server.before = refuse
    waiting = asyncio.ensure_future(wait_loaded(target(), http, clock, told.append))
    while len(server.asked) < 20:
        await asyncio.sleep(0.001)
    assert not waiting.done()
    waiting.cancel()
    assert told == [Progress("PRELOAD", 0, None, "GET /v1/stage: 503 Service Unavailable: loading", "nothing")]


async def test_another_program_that_answers_not_yet_is_told_each_time(server: Server, target: Make, http, clock, told):
    async def refuse(_: web.Request) -> web.Response:
        return web.Response(status=503, text="loading")

    server.before = refuse
    others = target(stage=None, loaded=HttpProbe("/health"))
    with pytest.raises(WarmupError):
        await wait_loaded(others, http, clock, told.append, timeout_s=1)
    assert len(told) == len(server.asked) > 5
    assert {progress.sign for progress in told} == {"not_yet"}


async def test_that_nobody_listens_is_no_sign_of_life(http, clock: FakeClock, told: list[Progress], target: Make):
    closed = Target("http://127.0.0.1:9", target(stage=None, loaded=HttpProbe("/health")).probes)
    with pytest.raises(WarmupError):
        await wait_loaded(closed, http, clock, told.append, timeout_s=1)
    assert [progress.sign for progress in told] == ["nothing"]


async def test_a_built_in_server_that_keeps_answering_with_an_error_is_given_up(
    server: Server, target: Make, http, clock, told
):
    async def fail(_: web.Request) -> web.Response:
        return web.Response(status=500, text="oops")

    server.before = fail
    with pytest.raises(WarmupError, match="500 Internal Server Error: oops") as caught:
        await wait_loaded(target(), http, clock, told.append)
    assert caught.value.code == "request_failed"


async def test_an_error_now_and_then_is_not_held_against_a_server(server: Server, target: Make, http, clock, told):
    async def fail_mostly(_: web.Request) -> web.Response | None:
        server.stage["stage"] = "loaded" if len(server.asked) > 80 else "preload"
        return web.Response(status=500) if len(server.asked) % 20 else None

    server.before = fail_mostly
    assert (await wait_loaded(target(), http, clock, told.append)).bytes_read == 7


async def test_an_error_of_a_program_that_is_not_ours_may_be_its_way_of_loading(
    server: Server, target: Make, http, clock, told
):
    async def fail_long(_: web.Request) -> web.Response | None:
        return web.Response(status=500) if len(server.asked) < 100 else None

    server.before = fail_long
    await wait_loaded(target(stage=None, loaded=HttpProbe("/health")), http, clock, told.append)
    assert len(server.asked) >= 100


async def test_an_answer_that_is_not_json_never_counts_as_loaded(server: Server, target: Make, http, clock, told):
    async def nonsense(_: web.Request) -> web.Response:
        return web.Response(text="<html>loaded</html>")

    server.before = nonsense
    with pytest.raises(WarmupError, match="stage answer is not JSON"):
        await wait_loaded(target(), http, clock, told.append, timeout_s=1)


async def test_a_ready_path_must_also_contain_its_text(server: Server, target: Make, http, clock, told):
    probes = {"stage": None, "loaded": HttpProbe("/health", expect_text="nobody says this")}
    with pytest.raises(WarmupError, match="does not contain 'nobody says this'"):
        await wait_loaded(target(**probes), http, clock, told.append, timeout_s=1)
    report = await wait_loaded(target(stage=None, loaded=HttpProbe("/health")), http, clock, told.append)
    assert set(report.parts.values()) == {None}


async def test_a_health_path_that_lies_is_not_enough_where_a_deeper_one_exists(
    server: Server, target: Make, http, clock, told
):
    async def lie(request: web.Request) -> web.Response | None:
        early = request.path == "/health_generate" and len(server.asked) < 8
        return web.Response(status=503) if early else None

    server.before = lie
    probes = {"stage": None, "loaded": HttpProbe("/health"), "deep": HttpProbe("/health_generate")}
    await wait_loaded(target(**probes), http, clock, told.append)
    assert len(server.asked) >= 8


async def test_a_generation_that_succeeds_without_an_answer_is_given_up_after_a_while(
    server: Server, target: Make, http, clock: FakeClock, told
):
    async def fail(request: web.Request) -> web.Response | None:
        return web.json_response({"error": "generation failed"}) if request.path == "/health_generate" else None

    server.before = fail
    deep = HttpProbe("/health_generate", expect_text='"choices"')
    with pytest.raises(WarmupError, match="generation failed") as caught:
        await wait_loaded(target(stage=None, loaded=HttpProbe("/health"), deep=deep), http, clock, told.append)
    assert caught.value.code == "request_failed"
    assert clock.now_s >= 160


async def test_a_ready_path_may_say_for_long_that_it_is_not(server: Server, target: Make, http, clock, told):
    made = target(stage=None, loaded=HttpProbe("/health", expect_text="nobody says this"), deep=None)
    with pytest.raises(WarmupError) as caught:
        await wait_loaded(made, http, clock, told.append, timeout_s=90)
    assert caught.value.code == "loaded_timeout"


async def test_a_log_line_can_say_that_it_is_loaded(target: Make, http: aiohttp.ClientSession, clock, told):
    asked: list[str] = []

    def log_says(pattern: str) -> bool:
        asked.append(pattern)
        return len(asked) == 4

    made = target(stage=None, loaded=LogProbe("^Uvicorn running"))
    await wait_loaded(Target(made.base_url, made.probes, log_says), http, clock, told.append)
    assert asked == ["^Uvicorn running"] * 4


async def test_nothing_to_wait_for_is_loaded_at_once(target: Make, http, clock, told):
    await wait_loaded(target(stage=None, loaded=None), http, clock, told.append)
    assert told == [Progress("PRELOAD", 1, 1, "loaded")]
