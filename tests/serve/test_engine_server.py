from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.serve.fakes import EOS, TOKEN, VOCAB_SIZE, FakeEngine, engine_serving
from toolkit.serve.api import ApiError
from toolkit.serve.engine_server import allowed_tokens

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"


def ask(prompt: Any = "Hello", **more: Any) -> dict[str, Any]:
    return {"model": "fake", "prompt": prompt, "max_tokens": 60, "temperature": 0, **more}


async def until(condition: Any) -> None:
    while not condition():
        await asyncio.sleep(0.005)


# Answers.


async def test_a_completion_has_openai_s_shape_and_counts_tokens(tmp_path: Path) -> None:
    async with engine_serving(FakeEngine(), tmp_path) as client:
        status, body = await client.post(COMPLETIONS, ask("Hello"))
    assert status == 200
    assert body["object"] == "text_completion"
    assert body["model"] == "fake"
    assert body["choices"] == [{"index": 0, "text": "Hello", "finish_reason": "stop", "logprobs": None}]
    assert body["usage"] == {"prompt_tokens": 5, "completion_tokens": 6, "total_tokens": 11}


async def test_max_tokens_ends_the_answer_with_length(tmp_path: Path) -> None:
    async with engine_serving(FakeEngine(), tmp_path) as client:
        _, body = await client.post(COMPLETIONS, ask("Hello", max_tokens=3))
    assert body["choices"][0]["text"] == "Hel"
    assert body["choices"][0]["finish_reason"] == "length"


async def test_a_prompt_of_token_ids_and_the_ids_of_the_answer(tmp_path: Path) -> None:
    async with engine_serving(FakeEngine(), tmp_path) as client:
        _, body = await client.post(COMPLETIONS, ask(list(b"abc"), return_token_ids=True))
    assert body["choices"][0]["token_ids"] == [*b"abc", EOS]
    assert body["choices"][0]["prompt_token_ids"] == list(b"abc")


async def test_ignore_eos_goes_on_to_max_tokens(tmp_path: Path) -> None:
    async with engine_serving(FakeEngine(), tmp_path) as client:
        _, body = await client.post(COMPLETIONS, ask("ab", max_tokens=9, ignore_eos=True))
    assert body["usage"]["completion_tokens"] == 9
    assert body["choices"][0]["finish_reason"] == "length"


async def test_a_chat_is_written_by_the_model_s_template(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]
    async with engine_serving(FakeEngine(), tmp_path) as client:
        status, body = await client.post(CHAT, {"messages": messages, "temperature": 0})
    assert status == 200
    assert body["object"] == "chat.completion"
    assert body["choices"][0]["message"]["content"] == "user:hi;"


async def test_what_the_template_refuses_is_a_bad_request(tmp_path: Path) -> None:
    async with engine_serving(FakeEngine(), tmp_path) as client:
        status, body = await client.post(CHAT, {"messages": [{"role": "tool", "content": "x"}]})
    assert status == 400
    assert "no tools here" in body["error"]["message"]


async def test_logprobs_of_a_completion(tmp_path: Path) -> None:
    async with engine_serving(FakeEngine(), tmp_path) as client:
        _, body = await client.post(COMPLETIONS, ask("ab", max_tokens=2, logprobs=2))
    logprobs = body["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["a", "b"]
    assert logprobs["text_offset"] == [0, 1]
    assert all(-0.01 < value <= 0 for value in logprobs["token_logprobs"])
    assert [len(top) for top in logprobs["top_logprobs"]] == [2, 2]


async def test_logprobs_of_a_chat(tmp_path: Path) -> None:
    body = {"messages": [{"role": "user", "content": "x"}], "logprobs": True, "top_logprobs": 1, "max_tokens": 1}
    async with engine_serving(FakeEngine(), tmp_path) as client:
        _, answer = await client.post(CHAT, body)
    (entry,) = answer["choices"][0]["logprobs"]["content"]
    assert entry["token"] == "u"
    assert entry["bytes"] == list(b"u")
    assert entry["top_logprobs"][0]["token"] == "u"


# Streams.


async def test_a_stream_sends_the_same_text_and_ends_with_done(tmp_path: Path) -> None:
    async with engine_serving(FakeEngine(), tmp_path) as client:
        chunks = await client.stream(COMPLETIONS, ask("Hello", stream_options={"include_usage": True}))
    assert "".join(c["choices"][0]["text"] for c in chunks[:-1]) == "Hello"
    assert [c["choices"][0]["finish_reason"] for c in chunks[:-1]] == [None] * 5 + ["stop"]
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 6


async def test_a_stream_never_holds_half_a_character(tmp_path: Path) -> None:
    async with engine_serving(FakeEngine(), tmp_path) as client:
        chunks = await client.stream(COMPLETIONS, ask("né🎉e"))
    assert [c["choices"][0]["text"] for c in chunks] == ["n", "é", "🎉", "e", ""]


async def test_a_stream_of_a_chat_opens_with_the_role(tmp_path: Path) -> None:
    async with engine_serving(FakeEngine(), tmp_path) as client:
        chunks = await client.stream(CHAT, {"messages": [{"role": "user", "content": "x"}], "temperature": 0})
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in chunks) == "user:x;"
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


async def test_a_stop_string_across_chunks_is_cut_off_and_ends_the_generation(tmp_path: Path) -> None:
    engine = FakeEngine()
    async with engine_serving(engine, tmp_path) as client:
        chunks = await client.stream(COMPLETIONS, ask("one END two", stop=["END"]))
        _, whole = await client.post(COMPLETIONS, ask("one END two", stop="END"))
    assert "".join(c["choices"][0]["text"] for c in chunks) == "one "
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert whole["choices"][0]["text"] == "one "
    assert whole["usage"]["completion_tokens"] == len("one END")


async def test_the_start_of_a_stop_string_that_is_none_is_let_through(tmp_path: Path) -> None:
    async with engine_serving(FakeEngine(), tmp_path) as client:
        _, body = await client.post(COMPLETIONS, ask("spEND EN", stop=["END!"]))
    assert body["choices"][0]["text"] == "spEND EN"


async def test_an_engine_s_failure_fails_that_request_alone(tmp_path: Path) -> None:
    engine = FakeEngine()
    engine.fail_on = b"bad"
    async with engine_serving(engine, tmp_path) as client:
        bad, good = await asyncio.gather(client.post(COMPLETIONS, ask("bad")), client.post(COMPLETIONS, ask("good")))
    assert bad[0] == 500
    assert "scripted failure" in bad[1]["error"]["message"]
    assert good[1]["choices"][0]["text"] == "good"
    assert not engine.in_slots


# Batching, queue, disconnects.


async def test_requests_decode_together_and_keep_their_own_text(tmp_path: Path) -> None:
    engine = FakeEngine(max_batch_size=3)
    engine.gate.clear()
    async with engine_serving(engine, tmp_path) as client:
        prompts = ["first one", "second", "third!!"]
        tasks = [asyncio.create_task(client.post(COMPLETIONS, ask(p))) for p in prompts]
        await until(lambda: client.server.status.in_flight == 3)
        engine.gate.set()
        answers = await asyncio.gather(*tasks)
    assert [body["choices"][0]["text"] for _, body in answers] == prompts
    assert max(engine.batches) == 3


async def test_past_the_queue_the_answer_is_429_with_retry_after(tmp_path: Path) -> None:
    engine = FakeEngine(max_batch_size=1)
    engine.gate.clear()
    async with engine_serving(engine, tmp_path, max_queue=1) as client:
        running = asyncio.create_task(client.post(COMPLETIONS, ask("running")))
        await until(lambda: engine.in_slots)
        waiting = asyncio.create_task(client.post(COMPLETIONS, ask("waiting")))
        await until(lambda: client.server.status.in_flight == 2)
        async with client.session.post(COMPLETIONS, json=ask("too many")) as refused:
            assert refused.status == 429
            assert refused.headers["Retry-After"] == "1"
            assert (await refused.json())["error"]["type"] == "rate_limit_error"
        assert "coexist_server_rejected_total 1.0" in client.server.metrics.text().decode()
        assert (await client.get("/health_generate"))[0] == 429  # busy, which a prober must be able to tell from broken
        engine.gate.set()
        assert [(await task)[0] for task in (running, waiting)] == [200, 200]


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_goes_away_frees_its_slot(tmp_path: Path, stream: bool) -> None:
    engine = FakeEngine(max_batch_size=1, limit=64)
    engine.gate.clear()
    async with engine_serving(engine, tmp_path) as client:
        task = asyncio.create_task(client.post(COMPLETIONS, ask("x" * 60, stream=stream)))
        await until(lambda: engine.in_slots)
        task.cancel()
        await until(lambda: client.server.status.in_flight == 0)
        engine.gate.set()
        status, _ = await client.post(COMPLETIONS, ask("next"))
        assert status == 200
        assert len(engine.batches) < 60 + 5


async def test_a_waiting_request_whose_client_went_away_never_runs(tmp_path: Path) -> None:
    prompts: list[bytes] = []
    engine = FakeEngine(lambda prompt: prompts.append(prompt) or prompt, max_batch_size=1)
    engine.gate.clear()
    async with engine_serving(engine, tmp_path) as client:
        running = asyncio.create_task(client.post(COMPLETIONS, ask("running")))
        await until(lambda: engine.in_slots)
        gone = asyncio.create_task(client.post(COMPLETIONS, ask("gone")))
        await until(lambda: client.server.status.in_flight == 2)
        gone.cancel()
        await until(lambda: client.server.status.in_flight == 1)
        engine.gate.set()
        await running
        await client.post(COMPLETIONS, ask("after"))
    assert prompts == [b"running", b"after"]


# Bad requests.

BAD_COMPLETIONS: list[tuple[dict[str, Any], str]] = [
    (ask(""), "empty"),
    (ask("x" * 65), "max_input_len 64"),
    (ask("x", max_tokens=128), "max_seq_len 128"),
    ({}, "prompt"),
    (ask(["a", "b"]), "one string"),
    (ask([]), "one string"),
    (ask([1, "a"]), "prompt[1] must be a token id"),
    (ask([VOCAB_SIZE]), "token id"),
    (ask([-1]), "token id"),
    (ask([True]), "a token id"),
    (ask(7), "string"),
    (ask({"a": 1}), "string"),
    (ask("\ud800"), "surrogate"),
    (ask(stop=""), "stop"),
    (ask(stop=["a"] * 17), "stop"),
    (ask(stop=[3]), "stop"),
    (ask(stop=["\udfff"]), "surrogate"),
    (ask(temperature=-1), "temperature"),
    (ask(temperature="hot"), "temperature"),
    (ask(temperature=float("nan")), "NaN"),
    (ask(temperature=10**400), "temperature"),
    (ask(top_p=1.5), "top_p"),
    (ask(max_tokens=0), "max_tokens"),
    (ask(max_tokens=1.5), "max_tokens"),
    (ask(max_tokens=True), "max_tokens"),
    (ask(seed=2**70), "seed"),
    (ask(logprobs=99), "logprobs"),
    (ask(n=2), "n is not supported"),
    (ask(echo=True), "echo"),
    (ask(frequency_penalty=0.5), "frequency_penalty"),
    (ask(stream="yes"), "stream"),
    (ask(stream_options=[1]), "stream_options"),
    (ask(model=5), "model"),
]


@pytest.mark.parametrize(("body", "says"), BAD_COMPLETIONS, ids=lambda value: repr(value)[:60])
async def test_a_bad_completion_is_refused_by_name(tmp_path: Path, body: dict[str, Any], says: str) -> None:
    async with engine_serving(FakeEngine(), tmp_path) as client:
        status, answer = await client.post(COMPLETIONS, body)
    assert status == 400
    assert says in answer["error"]["message"]
    assert answer["error"]["type"] == "invalid_request_error"


RAW_BODIES = [
    b"", b"{", b"[]", b"null", b'"text"', b"\xff\xfe", b"\x00", b"[" * 100_000,
    b'{"prompt": ' + b"9" * 5000 + b"}", b'{"prompt": "\\ud800"}', b'{"prompt": NaN}', b'{"prompt":"a"} b',
]  # fmt: skip


@pytest.mark.parametrize("raw", RAW_BODIES, ids=lambda raw: repr(raw[:20]))
@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
async def test_a_body_that_is_no_request_is_never_a_server_error(tmp_path: Path, path: str, raw: bytes) -> None:
    async with engine_serving(FakeEngine(), tmp_path) as client, client.session.post(path, data=raw) as answer:
        assert answer.status == 400
        assert (await answer.json())["error"]["message"]


async def test_a_body_with_a_broken_content_encoding_is_a_bad_request(tmp_path: Path) -> None:
    headers = {"Content-Encoding": "gzip"}
    async with (
        engine_serving(FakeEngine(), tmp_path) as client,
        client.session.post(COMPLETIONS, data=b'{"prompt": "a"}', headers=headers) as answer,
    ):
        assert answer.status == 400


BAD_MESSAGES = [None, [], "hi", [1], [{"role": 1, "content": "x"}], [{"content": "x"}],
                [{"role": "user", "content": [{"type": "image_url"}]}], [{"role": "user", "content": 3}]]  # fmt: skip


@pytest.mark.parametrize("messages", BAD_MESSAGES, ids=repr)
async def test_bad_messages_are_refused(tmp_path: Path, messages: Any) -> None:
    async with engine_serving(FakeEngine(), tmp_path) as client:
        status, answer = await client.post(CHAT, {"messages": messages})
    assert status == 400
    assert "messages" in answer["error"]["message"]


async def test_an_unknown_model_is_not_found(tmp_path: Path) -> None:
    async with engine_serving(FakeEngine(), tmp_path) as client:
        status, answer = await client.post(COMPLETIONS, ask(model="other"))
    assert status == 404
    assert answer["error"]["code"] == "model_not_found"
    assert "'fake'" in answer["error"]["message"]


async def test_unknown_paths_and_methods_have_openai_s_error_shape(tmp_path: Path) -> None:
    async with engine_serving(FakeEngine(), tmp_path) as client:
        assert (await client.get("/nothing"))[0] == 404
        status, answer = await client.get(COMPLETIONS)
    assert status == 405
    assert "error" in answer


async def test_a_body_over_the_limit_is_413(tmp_path: Path) -> None:
    body = b" " * (17 * 1024 * 1024)
    async with engine_serving(FakeEngine(), tmp_path) as client, client.session.post(COMPLETIONS, data=body) as answer:
        assert answer.status == 413
        assert "error" in await answer.json()


@pytest.mark.parametrize(("prompt", "asked", "allowed"), [(10, None, 54), (10, 5, 5), (32, 32, 32)])
def test_allowed_tokens_within_the_limits(prompt: int, asked: int | None, allowed: int) -> None:
    assert allowed_tokens(prompt, asked, 32, 64) == allowed


def test_a_prompt_that_fills_the_sequence_leaves_no_room() -> None:
    with pytest.raises(ApiError) as refused:
        allowed_tokens(64, None, 64, 64)
    assert "max_seq_len 64" in refused.value.message


# The contract with coexist.


async def test_before_loading_is_over_everything_but_state_answers_503(tmp_path: Path) -> None:
    gate = threading.Event()
    async with engine_serving(FakeEngine(), tmp_path, register=False, load_gate=gate) as client:
        assert (await client.get("/health"))[0] == 503
        assert (await client.get("/health_generate"))[0] == 503
        assert (await client.post(COMPLETIONS, ask(), client.token))[0] == 503
        assert (await client.post("/v1/warmup", {"mode": "full"}, client.token))[0] == 503
        assert (await client.post("/v1/register", headers=client.token))[0] == 503
        status, stage = await client.get("/v1/stage")
        assert (status, stage["stage"]) == (200, "preload")
        assert (await client.get("/v1/models"))[1]["data"][0]["id"] == "fake"
        gate.set()


async def test_until_registered_only_the_token_s_holder_is_answered(tmp_path: Path) -> None:
    async with engine_serving(FakeEngine(), tmp_path, register=False) as client:
        await client.loaded()
        async with client.session.post(COMPLETIONS, json=ask()) as answer:
            assert answer.status == 503
            assert answer.headers["Retry-After"] == "1"
        wrong = {"X-Coexist-Token": TOKEN + "x"}
        assert (await client.post(COMPLETIONS, ask(), wrong))[0] == 503
        assert (await client.post(COMPLETIONS, ask(), client.token))[0] == 200
        assert (await client.post("/v1/%63ompletions", ask()))[0] in (404, 503)
        assert (await client.get("/health"))[0] == 503
        await client.register()
        assert (await client.post(COMPLETIONS, ask()))[0] == 200
        assert (await client.get("/health"))[0] == 200
        assert (await client.get("/health_generate"))[0] == 200


@pytest.mark.parametrize("path", ["/v1/warmup", "/v1/register", "/v1/drain"])
async def test_what_changes_state_needs_the_token(tmp_path: Path, path: str) -> None:
    async with engine_serving(FakeEngine(), tmp_path, register=False) as client:
        await client.loaded()
        assert (await client.post(path))[0] == 401
        assert (await client.post(path, headers={"X-Coexist-Token": "wrong"}))[0] == 401
        assert client.server.status.stage == "loaded"


@pytest.mark.parametrize("given", [None, "", TOKEN])
async def test_without_a_token_of_its_own_a_server_refuses_every_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str | None
) -> None:
    monkeypatch.delenv("COEXIST_TOKEN")
    async with engine_serving(FakeEngine(), tmp_path, register=False) as client:
        await client.loaded()
        headers = {} if given is None else {"X-Coexist-Token": given}
        assert (await client.post("/v1/register", headers=headers))[0] == 401


async def test_warm_up_runs_every_shape_and_tells_which(tmp_path: Path) -> None:
    engine = FakeEngine()
    async with engine_serving(engine, tmp_path, register=False) as client:
        await client.loaded()
        every = [*engine.shapes("full"), "chat_template"]
        before = (await client.get("/v1/warmup/keys"))[1]
        assert (before["keys"], before["done"]) == (every, [])
        _, single = await client.post("/v1/warmup", {"mode": "single"}, client.token)
        assert (single["keys"], single["ran"]) == (["prefill"], 1)
        _, full = await client.post("/v1/warmup", {"mode": "full"}, client.token)
        assert full["ran"] == 4
        assert sorted((await client.get("/v1/warmup/keys"))[1]["done"]) == sorted(every)
        assert (await client.post("/v1/warmup", {"mode": "half"}, client.token))[0] == 400
    assert engine.ran == ["prefill", *engine.shapes("full")]


async def test_a_warm_up_beside_requests_waits_for_their_slots(tmp_path: Path) -> None:
    engine = FakeEngine()
    async with engine_serving(engine, tmp_path) as client:
        tasks = [client.post(COMPLETIONS, ask(f"text {n}")) for n in range(6)]
        warm = client.post("/v1/warmup", {"mode": "full"}, client.token)
        answers = await asyncio.gather(*tasks, warm)
    assert [status for status, _ in answers] == [200] * 7


async def test_a_failing_shape_is_named(tmp_path: Path) -> None:
    engine = FakeEngine()
    engine.run_shape = lambda key: 1 / 0  # type: ignore[method-assign,return-value]
    async with engine_serving(engine, tmp_path, register=False) as client:
        await client.loaded()
        status, body = await client.post("/v1/warmup", {"mode": "single"}, client.token)
    assert status == 500
    assert "prefill" in body["error"]["message"]


async def test_draining_loses_no_request_and_takes_no_new_one(tmp_path: Path) -> None:
    engine = FakeEngine(max_batch_size=2)
    engine.gate.clear()
    async with engine_serving(engine, tmp_path) as client:
        running = [asyncio.create_task(client.post(COMPLETIONS, ask(f"text {n}"))) for n in range(4)]
        await until(lambda: client.server.status.in_flight == 4)
        drain = asyncio.create_task(client.post("/v1/drain", headers=client.token))
        await until(lambda: client.server.status.stage == "draining")
        async with client.session.post(COMPLETIONS, json=ask("late"), headers=client.token) as late:
            assert late.status == 503
            assert "Retry-After" in late.headers
        assert (await client.get("/health"))[0] == 503
        assert not drain.done()
        engine.gate.set()
        assert (await drain) == (200, {"stage": "draining", "in_flight": 0})
        assert [(await task)[0] for task in running] == [200] * 4
        assert (await client.post("/v1/register", headers=client.token))[0] == 409


async def test_stage_reports_parts_attention_and_requests_in_flight(tmp_path: Path) -> None:
    engine = FakeEngine()
    async with engine_serving(engine, tmp_path) as client:
        engine.gate.clear()
        task = asyncio.create_task(client.post(COMPLETIONS, ask()))
        await until(lambda: engine.in_slots)
        _, stage = await client.get("/v1/stage")
        engine.gate.set()
        await task
    assert stage["stage"] == "serving"
    assert stage["in_flight"] == 1
    assert stage["attention"] == "fused"
    assert stage["compile_events"] == 0
    assert stage["parts"]["weights"] == 0.25
    assert set(stage["parts"]) == {"context", "weights", "kv_cache", "tokenizer"}


async def test_metrics_count_tokens_requests_and_slots(tmp_path: Path) -> None:
    async with engine_serving(FakeEngine(), tmp_path) as client:
        await client.post(COMPLETIONS, ask("Hello"))
        await client.post(COMPLETIONS, ask(""))
        async with client.session.get("/metrics") as answer:
            text = await answer.text()
    for line in (
        'coexist_server_requests_total{path="/v1/completions",status="200"} 1.0',
        'coexist_server_requests_total{path="/v1/completions",status="400"} 1.0',
        "coexist_server_first_token_seconds_count 1.0",
        "coexist_server_time_per_token_seconds_count 5.0",
        "coexist_server_generated_tokens_total 6.0",
        "coexist_server_slots 2.0",
        "coexist_server_slots_in_use 0.0",
        "coexist_server_kv_blocks 8.0",
        "coexist_server_kv_blocks_in_use 0.0",
        "coexist_server_kv_blocks_stored 0.0",
        "coexist_server_prefix_hit_tokens_total 0.0",
        "coexist_server_queue_length 0.0",
        "coexist_server_rejected_total 0.0",
        'coexist_server_finished_total{reason="stop"} 1.0',
        'coexist_server_finished_total{reason="cancelled"} 0.0',
        'coexist_server_stage{stage="serving"} 1.0',
        'coexist_server_attention_info{used="fused"} 1.0',
    ):
        assert line in text


async def test_the_token_is_never_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="coexist.serve")
    async with engine_serving(FakeEngine(), tmp_path) as client:
        await client.post(COMPLETIONS, ask(), client.token)
        await client.post("/v1/drain", headers=client.token)
    assert "draining" in caplog.text
    assert TOKEN not in caplog.text


async def test_answers_are_plain_json(tmp_path: Path) -> None:
    body = ask("a", logprobs=5)
    async with engine_serving(FakeEngine(), tmp_path) as client, client.session.post(COMPLETIONS, json=body) as answer:
        json.loads(await answer.text(), parse_constant=pytest.fail)
