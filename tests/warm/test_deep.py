from __future__ import annotations

from collections.abc import Callable

import pytest
from aiohttp import web

from tests.warm.conftest import HEADERS, TOKEN, Server
from toolkit.runtimes.base import CanaryCheck, Generation, HttpProbe
from toolkit.warm import Target, deep
from toolkit.warm.client import RequestFailedError
from toolkit.warm.prompts import probe_lengths

Make = Callable[..., Target]
LIMIT_S = 5.0


async def test_a_programs_own_deep_probe_goes_before_a_token(server: Server, target: Make, http) -> None:
    await deep.one_answer(target(deep=HttpProbe("/health_generate", headers=HEADERS)), http, LIMIT_S)
    assert [path for path, _, _ in server.asked] == ["/health_generate"]


async def test_one_token_of_a_length_that_prime_used_is_asked_with_the_token(
    server: Server, target: Make, http
) -> None:
    await deep.one_answer(target(), http, LIMIT_S)
    ((_, body, headers),) = server.asked
    assert (body["max_tokens"], body["stream"], headers["X-Coexist-Token"]) == (1, False, TOKEN)
    assert len(body["prompt"].split()) in probe_lengths(64)


async def test_an_answer_without_a_token_is_no_answer(server: Server, target: Make, http) -> None:
    async def empty(_: web.Request) -> web.Response:
        return web.json_response({"choices": [{"text": "", "finish_reason": None}]})

    server.before = empty
    with pytest.raises(RequestFailedError, match="holds no token"):
        await deep.one_answer(target(), http, LIMIT_S)


@pytest.mark.parametrize("kind", ["embeddings", "request"])
async def test_what_has_no_tokens_is_asked_for_a_whole_answer(server: Server, target: Make, http, kind) -> None:
    async def embedded(_: web.Request) -> web.Response:
        return web.json_response({"data": [{"embedding": [1.0, 0.0]}]})

    server.before = embedded
    asked = Generation(kind, "/v1/embeddings", request=HttpProbe("/v1/embeddings"))
    await deep.one_answer(target(generation=asked), http, LIMIT_S)
    assert [path for path, _, _ in server.asked] == ["/v1/embeddings"]


async def test_nothing_to_ask_is_no_failure(server: Server, target: Make, http) -> None:
    await deep.one_answer(target(generation=None), http, LIMIT_S)
    assert server.asked == []


async def test_the_canary_is_judged_and_may_be_wrong(server: Server, target: Make, http) -> None:
    right = await deep.canary(target(), http, LIMIT_S)
    server.text = " London."
    wrong = await deep.canary(target(), http, LIMIT_S)
    assert (right.ok, wrong.ok, wrong.got) == (True, False, " London.")
    assert await deep.canary(target(canary=None), http, LIMIT_S) is None


async def test_a_fixed_canary_has_no_more_time_than_others(server: Server, target: Make, http) -> None:
    check = CanaryCheck(request=HttpProbe("/hello", expect_text="ok", timeout_s=99.0))
    found = await deep.canary(target(canary=check), http, LIMIT_S)
    assert found.ok
    assert deep._quick(check, LIMIT_S).request.timeout_s == LIMIT_S


async def test_a_metrics_page_is_read_where_there_is_one(server: Server, target: Make, http) -> None:
    assert await deep.metrics(target(), http, LIMIT_S) is None
    assert await deep.metrics(target(metrics=HttpProbe("/metrics")), http, LIMIT_S) == '{"ok": true}'
    assert await deep.metrics(target(metrics=HttpProbe("/metrics", expect_status=418)), http, LIMIT_S) is None
