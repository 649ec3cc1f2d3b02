"""The official client against both servers, as users of other servers have it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import openai
import pytest

from tests.serve.fakes import Client, FakeEngine, engine_serving, frontend_serving
from tests.serve.small_models import HIDDEN


def official(client: Client) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{client.url}/v1", api_key="none", max_retries=0)


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[openai.AsyncOpenAI]:
    async with engine_serving(FakeEngine(), tmp_path) as client, official(client) as api:
        yield api


@pytest.fixture
async def frontend(tmp_path: Path) -> AsyncIterator[openai.AsyncOpenAI]:
    async with frontend_serving(tmp_path) as client, official(client) as api:
        yield api


async def test_a_completion_is_read(engine: openai.AsyncOpenAI) -> None:
    answer = await engine.completions.create(model="fake", prompt="Hello", temperature=0)
    assert answer.choices[0].text == "Hello"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.total_tokens == 11


async def test_a_completion_is_streamed_with_log_probabilities(engine: openai.AsyncOpenAI) -> None:
    stream = await engine.completions.create(model="fake", prompt="Hello", temperature=0, stream=True, logprobs=1)
    chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].text for chunk in chunks) == "Hello"
    first = chunks[0].choices[0].logprobs
    assert first is not None
    assert first.tokens == ["H"]


async def test_a_chat_is_answered_and_streamed(engine: openai.AsyncOpenAI) -> None:
    answer = await engine.chat.completions.create(
        model="fake", messages=[{"role": "user", "content": "hi"}], temperature=0, logprobs=True, top_logprobs=2
    )
    assert answer.choices[0].message.content == "user:hi;"
    assert answer.choices[0].logprobs is not None
    stream = await engine.chat.completions.create(
        model="fake",
        messages=[{"role": "user", "content": "hi"}],
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == "user:hi;"
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == len("user:hi;") + 1


async def test_embeddings_are_the_same_as_floats_and_as_the_client_s_own_base64(frontend: openai.AsyncOpenAI) -> None:
    # The client asks for base64 and decodes it unless it is told otherwise.
    coded = await frontend.embeddings.create(model="small", input=["w1 w2", "w3"])
    plain = await frontend.embeddings.create(model="small", input=["w1 w2", "w3"], encoding_format="float")
    ids = await frontend.embeddings.create(model="small", input=[[2, 5, 6, 3], [2, 7, 3]], dimensions=HIDDEN)
    for one, two, three in zip(coded.data, plain.data, ids.data, strict=True):
        assert len(one.embedding) == HIDDEN
        assert one.embedding == pytest.approx(two.embedding, abs=1e-7)
        assert one.embedding == pytest.approx(three.embedding, abs=1e-5)
    assert coded.usage.prompt_tokens == 7


async def test_the_models_are_listed(engine: openai.AsyncOpenAI, tmp_path: Path) -> None:
    assert [model.id async for model in engine.models.list()] == ["fake"]
    async with frontend_serving(tmp_path / "frontend") as client, official(client) as api:
        assert [model.id async for model in api.models.list()] == ["small"]


async def test_bad_requests_and_unknown_models_are_the_client_s_own_errors(
    engine: openai.AsyncOpenAI, tmp_path: Path
) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        await engine.completions.create(model="fake", prompt="x", temperature=9)
    assert bad.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as long:
        await engine.completions.create(model="fake", prompt="x" * 100)
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError) as missing:
        await engine.completions.create(model="other", prompt="x")
    assert missing.value.code == "model_not_found"
    async with frontend_serving(tmp_path / "frontend") as client, official(client) as api:
        with pytest.raises(openai.BadRequestError) as empty:
            await api.embeddings.create(model="small", input=[])
        assert empty.value.type == "invalid_request_error"


async def test_a_full_queue_is_a_rate_limit(tmp_path: Path) -> None:
    gate = threading.Event()
    async with frontend_serving(tmp_path, "--max-queue", "1") as client, official(client) as api:
        batcher = client.server._backend._batcher  # type: ignore[attr-defined]
        embed = batcher._embed
        batcher._embed = lambda texts: embed(texts) if gate.wait(30) else None
        first = asyncio.create_task(api.embeddings.create(model="small", input="w1"))
        while client.server.status.in_flight == 0 or batcher.queued:
            await asyncio.sleep(0.005)
        second = asyncio.create_task(api.embeddings.create(model="small", input="w2"))
        while not batcher.queued:
            await asyncio.sleep(0.005)
        with pytest.raises(openai.RateLimitError) as full:
            await api.embeddings.create(model="small", input="w3")
        gate.set()
        assert [len(answer.data) for answer in await asyncio.gather(first, second)] == [1, 1]
    assert full.value.code == "queue_full"
    assert full.value.response.headers["Retry-After"] == "1"


async def test_a_server_that_does_not_serve_yet_is_a_503(tmp_path: Path) -> None:
    async with frontend_serving(tmp_path, register=False) as client, official(client) as api:
        await client.loaded()
        with pytest.raises(openai.InternalServerError) as early:
            await api.embeddings.create(model="small", input="w1")
        await client.register()
        assert len((await api.embeddings.create(model="small", input="w1")).data) == 1
    assert early.value.status_code == 503
    assert early.value.response.headers["Retry-After"] == "1"
