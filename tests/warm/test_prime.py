from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable

import pytest
from aiohttp import web

from tests.warm.conftest import DONE, HEADERS, TOKEN, FakeClock, Server, delta
from toolkit.runtimes.base import CanaryCheck, Generation, HttpProbe
from toolkit.warm import Memory, Progress, Target, WarmupError, prime
from toolkit.warm.compiles import Seen
from toolkit.warm.prime import MIN_PROBES, STEADY_WITHIN_S

Make = Callable[..., Target]


async def fails(target: Target, http, clock, told: list[Progress]) -> WarmupError:
    with pytest.raises(WarmupError) as caught:
        await prime(target, http, clock, "full", told.append)
    return caught.value


async def test_a_warm_server_is_proven_with_seven_probes(server: Server, target: Make, http, clock, told):
    proof = await prime(target(), http, clock, "full", told.append)
    assert proof.canary is not None
    assert proof.canary.ok
    assert proof.first_token_ms == pytest.approx((40.0,) * 7)
    assert (proof.p50_ms, proof.p99_ms) == (pytest.approx(40), pytest.approx(40))
    assert proof.keys == ("prefill:64", "decode:1")
    assert proof.compile_events == 3
    assert proof.seconds == pytest.approx(0.28)
    assert {headers["X-Coexist-Token"] for path, _, headers in server.asked if path != "/v1/stage"} == {TOKEN}


async def test_slow_first_requests_are_waited_out(server: Server, target: Make, http, clock, told):
    server.times_ms = [8000, 4000]
    proof = await prime(target(), http, clock, "full", told.append)
    assert proof.first_token_ms[:2] == pytest.approx((8000, 4000))
    assert proof.p99_ms == pytest.approx(40)
    assert len(proof.first_token_ms) >= 7


async def test_times_that_never_settle_end_the_attempt(server: Server, target: Make, http, clock, told):
    server.times_ms = [40, 400] * 600
    started_s = clock.now_s
    error = await fails(target(), http, clock, told)
    assert error.code == "never_steady"
    assert set(map(round, error.details["first_token_ms"])) == {40, 400}
    assert STEADY_WITHIN_S <= clock.now_s - started_s < STEADY_WITHIN_S + 1


async def test_a_slow_server_gets_enough_probes_to_become_steady(server: Server, target: Make, http, clock, told):
    server.times_ms = [8000, 16000] * 100
    assert (await fails(target(), http, clock, told)).code == "never_steady"
    assert server.streams == MIN_PROBES


async def test_a_wrong_canary_ends_the_attempt_before_any_probe(server: Server, target: Make, http, clock, told):
    server.text = " Lyon."
    error = await fails(target(), http, clock, told)
    assert error.code == "canary_wrong"
    assert error.details["canary"] == {"ok": False, "expected": " Paris", "got": " Lyon."}
    assert error.what == "the canary's answer is wrong: expected 'Paris', got 'Lyon.'"
    assert server.streams == 0


async def test_tokens_are_compared_when_the_server_tells_them(server: Server, target: Make, http, clock, told):
    server.token_ids = [7042, 31]
    canary = CanaryCheck("The capital of France is", 2, expected_tokens=(7042, 30), expected_text=" Paris.")
    assert (await fails(target(canary=canary), http, clock, told)).code == "canary_wrong"
    assert server.bodies("/v1/completions")[0]["return_token_ids"] is True
    server.token_ids = [7042, 30]
    proof = await prime(target(canary=canary), http, clock, "full", told.append)
    assert proof.canary is not None
    assert proof.canary.ok


async def test_empty_deltas_and_keep_alives_are_no_first_token(server: Server, target: Make, http, clock, told):
    server.default_ms = 0
    server.events = lambda: [b": ping\n\n", delta(""), 0.5, delta(""), 0.25, delta(" a"), 0.1, DONE]
    proof = await prime(target(), http, clock, "full", told.append)
    # The server moves the clock before its client reads, so the time is that of the content or later, never less.
    assert min(proof.first_token_ms) >= 750


async def test_answers_without_any_text_are_asked_again_with_more_tokens(
    server: Server, target: Make, http, clock, told
):
    replies = iter([[delta("", finish="stop"), DONE]])
    server.events = lambda: next(replies, [delta(" a"), delta("", finish="length"), DONE])
    proof = await prime(target(), http, clock, "full", told.append)
    assert len(proof.first_token_ms) == 7
    streamed = [body for body in server.bodies("/v1/completions") if body["stream"]]
    assert [body["max_tokens"] for body in streamed[:3]] == [2, 16, 2]
    assert len({body["prompt"] for body in streamed}) == len(streamed)


async def test_a_server_that_only_sends_empty_answers_fails(server: Server, target: Make, http, clock, told):
    server.events = lambda: [delta("", finish="stop"), DONE]
    error = await fails(target(), http, clock, told)
    assert (error.code, error.what) == ("request_failed", "POST /v1/completions: 8 answers in a row hold no text")


async def test_a_compile_on_the_third_probe_starts_the_proof_again(server: Server, target: Make, http, clock, told):
    server.compile_on = {2}
    proof = await prime(target(), http, clock, "full", told.append)
    assert server.streams == 14
    assert proof.compile_events == 4
    assert len(proof.first_token_ms) == 7
    assert any("once more" in progress.what for progress in told)


async def test_a_compile_in_every_proof_ends_the_attempt(server: Server, target: Make, http, clock, told):
    server.compile_on = set(range(0, 1000, 3))
    assert (await fails(target(), http, clock, told)).code == "compile_during_proof"


async def test_where_compiles_cannot_be_seen_their_count_is_unknown(server: Server, target: Make, http, clock, told):
    proof = await prime(target(stage=None), http, clock, "full", told.append)
    assert proof.compile_events is None


async def test_503_for_ever_ends_the_attempt_in_one_line_without_the_token(
    server: Server, target: Make, http, clock: FakeClock, told
):
    server.statuses = [503] * 10_000
    error = await fails(target(), http, clock, told)
    assert error.code == "request_failed"
    assert error.what == "POST /v1/completions: 503 Service Unavailable: refused, token ***"
    assert clock.now_s >= 220


async def test_a_server_that_only_needs_more_time_gets_it(server: Server, target: Make, http, clock, told):
    server.statuses = [503] * 100
    proof = await prime(target(), http, clock, "full", told.append)
    assert proof.seconds > 50
    assert sum(progress.sign == "not_yet" for progress in told) == 100


async def test_every_answer_is_a_step_forward_however_many_it_takes(server: Server, target: Make, http, clock, told):
    server.times_ms = [40.0, 900.0] * 6
    proof = await prime(target(), http, clock, "full", told.append)
    steps = {progress.what for progress in told if progress.sign == "step"}
    assert len(steps) >= len(proof.first_token_ms) > 12


async def test_a_failing_generation_is_not_asked_again(server: Server, target: Make, http, clock, told):
    server.statuses = [500]
    error = await fails(target(), http, clock, told)
    assert error.what.startswith("POST /v1/completions: 500 Internal Server Error")
    assert len(server.bodies("/v1/completions")) == 1


async def test_a_stream_that_ends_early_fails(server: Server, target: Make, http, clock, told):
    server.events = lambda: [delta(" a"), delta(" b")]
    assert (await fails(target(), http, clock, told)).what.endswith("the stream ended before the answer did")


async def test_an_end_without_an_empty_line_behind_it_is_an_end(server: Server, target: Make, http, clock, told):
    server.events = lambda: [delta(" a"), delta(" b"), DONE.strip()]
    assert len((await prime(target(), http, clock, "full", told.append)).first_token_ms) == 7


async def test_an_answer_that_breaks_off_fails(server: Server, target: Make, http, clock, told):
    async def half(request: web.Request) -> web.StreamResponse | None:
        if request.path != "/v1/completions":
            return None
        response = web.StreamResponse(headers={"Content-Length": "1000"})
        await response.prepare(request)
        await response.write(b'{"choices": [')
        assert request.transport is not None
        request.transport.close()
        return response

    server.before = half
    error = await fails(target(), http, clock, told)
    assert (error.code, error.what) == ("request_failed", "POST /v1/completions: the answer broke off half-way")


async def test_an_answer_that_is_no_json_fails(server: Server, target: Make, http, clock, told):
    server.events = lambda: [b"data: {half\n\n", DONE]
    assert "the answer is not a completion" in (await fails(target(), http, clock, told)).what


async def test_an_error_inside_the_stream_fails(server: Server, target: Make, http, clock, told):
    server.events = lambda: [b'data: {"error": {"message": "out of blocks"}}\n\n', DONE]
    assert (await fails(target(), http, clock, told)).what.endswith("the server reports: out of blocks")


async def test_a_whole_answer_to_a_streamed_request_counts_as_its_first_token(server, target: Make, http, clock, told):
    async def whole(request: web.Request) -> web.Response | None:
        if request.path != "/v1/completions":
            return None
        clock.now_s += 0.06
        return web.json_response({"choices": [{"text": " Paris", "finish_reason": "length"}]})

    server.before = whole
    proof = await prime(target(), http, clock, "full", told.append)
    assert proof.p50_ms == pytest.approx(60)


@pytest.mark.parametrize(("mode", "asked", "probes"), [("full", 2, 7), ("single", 1, 7), ("none", 0, 0)])
async def test_the_mode_says_how_much_is_run(server: Server, target: Make, http, clock, told, mode, asked, probes):
    warmup = (HttpProbe("/v1/warmup", "POST", {"mode": "full"}, HEADERS), HttpProbe("/other", "POST", {"x": 1}))
    proof = await prime(target(warmup=warmup), http, clock, mode, told.append)
    assert len(server.bodies("/v1/warmup")) + len(server.bodies("/other")) == asked
    assert all(body == {"mode": mode} for body in server.bodies("/v1/warmup"))
    assert len(proof.first_token_ms) == probes
    assert proof.canary is not None
    assert proof.canary.ok


async def test_progress_never_runs_backwards_or_past_its_total(target: Make, http, clock, told: list[Progress]):
    await prime(target(), http, clock, "full", told.append)
    done = [progress.done for progress in told]
    assert done == sorted(done)
    assert all(progress.total == 7 and progress.done < 7 for progress in told)


async def test_prompts_and_lengths_vary(server: Server, target: Make, http, clock, told):
    await prime(target(), http, clock, "full", told.append)
    prompts = [body["prompt"] for body in server.bodies("/v1/completions") if body["stream"]]
    assert len(set(prompts)) == 7
    assert len({len(prompt.split()) for prompt in prompts}) == 3


async def test_chat_is_asked_in_its_own_shape(server: Server, target: Make, http, clock, told):
    bodies = []

    async def chat(request: web.Request) -> web.Response | None:
        if request.path != "/v1/chat/completions":
            return None
        bodies.append(await request.json())
        return web.json_response({"choices": [{"message": {"content": "Paris"}, "finish_reason": "stop"}]})

    server.before = chat
    generation = Generation("completions", "/v1/chat/completions", None)
    proof = await prime(target(generation=generation), http, clock, "full", told.append)
    assert proof.canary is not None
    assert proof.canary.ok
    assert bodies[0]["messages"] == [{"role": "user", "content": "The capital of France is"}]
    assert "model" not in bodies[0]


async def test_embeddings_are_judged_by_direction_and_timed_whole(server: Server, target: Make, http, clock, told):
    async def embed(request: web.Request) -> web.Response | None:
        if request.path != "/v1/embeddings":
            return None
        clock.now_s += 0.012
        return web.json_response({"data": [{"embedding": [0.6, 0.8]}]})

    server.before = embed
    made = target(
        canary=CanaryCheck("hello", expected_vector=(0.6, 0.8)),
        generation=Generation("embeddings", "/v1/embeddings", "minilm", 256, headers=HEADERS),
    )
    proof = await prime(made, http, clock, "full", told.append)
    assert proof.p50_ms == pytest.approx(12)
    assert server.bodies("/v1/embeddings")[0] == {"model": "minilm", "input": "hello"}


@pytest.mark.parametrize(("text", "ok"), [('"ok": true', True), ("something else", False)])
async def test_a_fixed_canary_request_must_contain_its_text(server: Server, target: Make, http, clock, told, text, ok):
    request = HttpProbe("/answer", "POST", {"q": 1}, expect_text=text)
    made = target(
        stage=None, canary=CanaryCheck(request=request), generation=Generation("request", "/answer", request=request)
    )
    if ok:
        proof = await prime(made, http, clock, "full", told.append)
        assert proof.canary is not None
        assert proof.canary.got == '{"ok": true}'
        assert len(proof.first_token_ms) == 7
    else:
        assert (await fails(made, http, clock, told)).code == "canary_wrong"


async def test_without_generation_or_canary_nothing_is_claimed(target: Make, http, clock, told):
    proof = await prime(target(canary=None, generation=None), http, clock, "full", told.append)
    assert (proof.canary, proof.first_token_ms, proof.p50_ms) == (None, (), None)


async def test_a_built_in_server_s_keys_are_told_while_they_run(
    server: Server, target: Make, http, clock, told, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sys.modules["toolkit.warm.prime"], "KEYS_POLL_S", 0.01)
    asked = asyncio.Event()

    async def before(request: web.Request) -> web.StreamResponse | None:
        if request.path == "/v1/warmup":
            await asked.wait()
        if request.path == "/v1/warmup/keys":
            asked.set()
            return web.json_response({"keys": ["a", "b", "c"], "done": ["a", "b"], "compiled": []})
        return None

    server.before = before
    proof = await prime(target(), http, clock, "full", told.append)
    assert "key 2 of 3" in [progress.what for progress in told]
    assert proof.coverage.ran == ("prefill:64", "decode:1")


async def test_a_compile_that_only_others_see_starts_the_proof_again(server: Server, target: Make, http, clock, told):
    looks = [Seen({"triton": 1, "nvrtc": None}), Seen({"triton": 2, "nvrtc": None}, {"triton": "AB/add"})]

    async def watch() -> Seen:
        return looks.pop(0) if len(looks) > 1 else looks[0]

    proof = await prime(target(), http, clock, "full", told.append, watch=watch)
    assert server.streams == 14
    assert any("triton: 1 (AB/add)" in progress.what for progress in told)
    assert proof.compiles.document() == {"triton": 2, "nvrtc": "unobservable"}
    assert proof.compile_events is None


async def test_a_compiler_that_was_at_work_before_the_proof_is_waited_for(
    server: Server, target: Make, http, clock, told
):
    async def watch() -> Seen:
        return Seen({"compilers": 1}, running="ptxas" if clock.now_s < 160 else None)

    proof = await prime(target(), http, clock, "full", told.append, watch=watch)
    assert clock.now_s > 160
    assert len(proof.first_token_ms) == server.streams == 7
    waited = [progress for progress in told if progress.what == "waits for a compiler to end: ptxas"]
    assert {progress.sign for progress in waited} == {"nothing"}  # its watch says for how long a compiler is believed


async def test_a_key_whose_answer_is_an_error_has_not_run(server: Server, target: Make, http, clock, told):
    async def failing(request: web.Request) -> web.Response | None:
        asked = await request.json() if request.path == "/v1/completions" else {}
        return web.json_response({"error": {"message": "illegal access"}}) if asked.get("max_tokens") == 4 else None

    body = {"prompt": "a b c", "max_tokens": 4, "stream": False}
    server.before = failing
    error = await fails(target(warmup=(HttpProbe("/v1/completions", "POST", body),)), http, clock, told)
    assert error.what == "POST /v1/completions: the server reports: illegal access"


async def test_what_each_part_took_and_added_is_told(server: Server, target: Make, http, clock, told):
    held = iter([Memory(100, 7), Memory(150, 7), Memory(150, 9), Memory(140, 9)])

    async def measure() -> Memory:
        return next(held)

    proof = await prime(target(), http, clock, "full", told.append, measure=measure)
    assert proof.host_bytes == {"compile": 50, "canary": 0, "proof": -10}
    assert proof.gpu_bytes == {"compile": 0, "canary": 2, "proof": 0}
    assert proof.parts["proof"] == pytest.approx(0.28)


async def test_patience_is_as_long_as_its_caller_says(server: Server, target: Make, http, clock: FakeClock, told):
    server.statuses = [503] * 10_000
    with pytest.raises(WarmupError):
        await prime(target(), http, clock, "full", told.append, patience_s=10.0)
    assert 110 <= clock.now_s < 115
