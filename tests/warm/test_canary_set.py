from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import web

from tests.warm.conftest import HEADERS, TOKEN, FakeClock, Server
from toolkit.canaries import CanaryPrompt, CanarySet, Reference
from toolkit.runtimes.base import Generation
from toolkit.warm import Progress, Proof, Target, WarmupError, prime

Make = Callable[..., Target]

MAX_NUM_TOKENS = 40
PROMPTS = (
    CanaryPrompt("short", "short question", 1, 1, "context_fmha", 3),
    CanaryPrompt("cached", "long text and a question", 2, 65, "kv_cache_reuse", 3),
    CanaryPrompt("shared_prefix", "long text and another question", 1, 65, "kv_cache_reuse", 3),
    CanaryPrompt("chunked", "very " * MAX_NUM_TOKENS + "long text", 1, 41, "chunked_prefill", 3),
)
RIGHT = {"short": " Paris.", "cached": " silver river", "shared_prefix": " golden hill", "chunked": " silver sea"}


def reference(text: str, margin: float = 4.0) -> Reference:
    first, second = text[: text.rindex(" ")] or text[:3], text
    return Reference((1, 2), (margin, margin), text, (len(first), len(second)))


REFERENCES = {name: reference(text) for name, text in RIGHT.items()}
SET = CanarySet(PROMPTS, REFERENCES, 0.5, "transformers 5.0")


async def body_of(request: web.Request) -> dict[str, Any]:
    """What was read of it before; a request without one says so by its length."""
    return await request.json() if request.content_length else {}


class Answers:
    """Answers each prompt right unless told otherwise: ``wrong[id]`` are the answers of its sendings in order."""

    def __init__(self, **wrong: list[str]) -> None:
        self.wrong = wrong
        self.asked: list[str] = []
        self.bodies: list[dict[str, Any]] = []

    async def __call__(self, request: web.Request) -> web.StreamResponse | None:
        body = await body_of(request)
        found = next((prompt.id for prompt in PROMPTS if prompt.text == body.get("prompt")), None)
        if found is None:
            return None
        assert request.headers["X-Coexist-Token"] == TOKEN
        self.bodies.append(body)
        answers = self.wrong.get(found, [])
        at, _ = self.asked.count(found), self.asked.append(found)
        return web.json_response({"choices": [{"text": answers[at] if at < len(answers) else RIGHT[found]}]})


async def primed(
    server: Server, target: Make, http: Any, clock: FakeClock, answers: Any, found: CanarySet = SET
) -> Proof:
    told: list[Progress] = []
    server.before = answers
    return await prime(target(canary_set=found), http, clock, "full", told.append)


async def vetoed(
    server: Server, target: Make, http: Any, clock: FakeClock, answers: Any, found: CanarySet = SET
) -> WarmupError:
    with pytest.raises(WarmupError) as caught:
        await primed(server, target, http, clock, answers, found)
    assert server.streams == 0
    return caught.value


async def test_every_prompt_is_asked_as_often_as_it_is_to_be_and_in_a_row(server, target, http, clock):
    answers = Answers()
    proof = await primed(server, target, http, clock, answers)
    assert proof.canary is not None
    assert proof.canary.ok
    assert answers.asked == ["short", "cached", "cached", "shared_prefix", "chunked"]
    assert {name: answer.text for name, answer in proof.answers.items()} == RIGHT
    assert {(body["max_tokens"], body["temperature"]) for body in answers.bodies} == {(3, 0)}
    assert not any("return_token_ids" in body for body in answers.bodies)


async def test_a_wrong_answer_from_cached_blocks_only_vetoes_ready_and_names_reuse(server, target, http, clock):
    error = await vetoed(server, target, http, clock, Answers(cached=[" silver river", " tin can"]))
    assert error.code == "canary_wrong"
    assert "wrong answer to 'cached' (2nd time)" in error.what
    assert "expected 'silver river', got 'tin can'" in error.what
    assert error.hint is not None
    assert error.hint.startswith("Look at kv_cache_reuse: ")
    assert error.details["canary"] == {"ok": False, "expected": " silver river", "got": " tin can"}
    assert error.details["guard"] == "kv_cache_reuse"


async def test_a_wrong_answer_behind_a_shared_prefix_names_reuse(server, target, http, clock):
    error = await vetoed(server, target, http, clock, Answers(shared_prefix=[" silver river"]))
    assert error.details["guard"] == "kv_cache_reuse"
    assert "transformers 5.0" in error.what


async def test_a_wrong_answer_to_a_prompt_in_chunks_names_chunked_prefill(server, target, http, clock):
    error = await vetoed(server, target, http, clock, Answers(chunked=[" tin can"]))
    assert error.details["guard"] == "chunked_prefill"
    assert "chunked context" in str(error.hint)


async def test_a_wrong_short_answer_names_fused_attention(server, target, http, clock):
    error = await vetoed(server, target, http, clock, Answers(short=[" London."]))
    assert error.details["guard"] == "context_fmha"


async def test_a_short_answer_that_is_wrong_only_when_it_is_asked_again_names_reuse(server, target, http, clock):
    prompts = (CanaryPrompt("short", "The capital of France is", 1, 1, "context_fmha", 3),)
    asked: list[str] = []

    async def right_once(request: web.Request) -> web.StreamResponse | None:
        body = await body_of(request)
        if body.get("prompt") != prompts[0].text:
            return None
        asked.append(body["prompt"])
        return web.json_response({"choices": [{"text": " Paris." if len(asked) == 1 else " tin can"}]})

    found = CanarySet(prompts, {"short": REFERENCES["short"]}, 0.5, "transformers 5.0")
    error = await vetoed(server, target, http, clock, right_once, found)
    assert error.details["guard"] == "kv_cache_reuse"
    assert "right the first time" in error.what
    assert error.details["canary"] == {"ok": False, "expected": " Paris.", "got": " tin can"}


async def test_an_answer_without_text_is_told_as_one_that_generated_nothing(server, target, http, clock):
    async def empty(request: web.Request) -> web.StreamResponse | None:
        body = await body_of(request)
        return web.json_response({"choices": [{"text": ""}]}) if body.get("prompt") else None

    error = await vetoed(server, target, http, clock, empty)
    assert error.code == "canary_wrong"
    assert "generated nothing" in str(error.hint)


async def test_a_flip_where_the_reference_is_undecided_is_accepted(server, target, http, clock):
    tie = {**REFERENCES, "shared_prefix": reference(" golden hill", margin=0.2)}
    found = CanarySet(PROMPTS, tie, 0.5, "transformers 5.0")
    proof = await primed(server, target, http, clock, Answers(shared_prefix=[" tin can"]), found)
    assert proof.canary is not None
    assert proof.canary.ok


async def test_repeats_that_differ_veto_even_where_nothing_is_recorded(server, target, http, clock):
    found = CanarySet(PROMPTS, {}, 0.0, "")
    error = await vetoed(server, target, http, clock, Answers(cached=[" a b", " a c"]), found)
    assert "differs from the first answer" in error.what
    assert (await primed(server, target, http, clock, Answers(cached=[" a b", " a b"]), found)).canary is not None


async def test_token_ids_are_compared_where_the_server_tells_them(server, target, http, clock):
    async def answer(request: web.Request) -> web.StreamResponse | None:
        body = await body_of(request)
        if "return_token_ids" not in body or "question" not in body["prompt"]:
            return None
        return web.json_response({"choices": [{"text": " Paris.", "token_ids": [1, 7]}]})

    server.before = answer
    generation = Generation("completions", "/v1/completions", "tiny", 64, headers=HEADERS, token_ids=True)
    with pytest.raises(WarmupError) as caught:
        await prime(target(canary_set=SET, generation=generation), http, clock, "full", lambda step: None)
    assert "token 2 is not the reference's" in caught.value.what


async def test_a_prompt_that_is_too_long_for_the_server_is_told_as_that(server, target, http, clock):
    async def refuse(request: web.Request) -> web.StreamResponse | None:
        body = await body_of(request)
        if body.get("prompt") == PROMPTS[3].text:
            return web.json_response({"error": {"message": "prompt has 43 tokens, at most 40"}}, status=400)
        return await Answers()(request)

    error = await vetoed(server, target, http, clock, refuse)
    assert error.code == "request_failed"
    assert "the canary 'chunked' of at least 41 tokens was refused" in error.what
    assert "at most 40" in error.what
    assert "max_input_len" in str(error.hint)
