from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.serve import embeddings
from toolkit.serve.api import ApiError
from toolkit.serve.completion_schemas import chat, completions
from toolkit.serve.completions import UNSUPPORTED, Ask, parse_chat, parse_completion
from toolkit.serve.openapi import Operation
from toolkit.serve.validation import fault

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(st.characters(), max_size=8)
    | st.sampled_from(["\ud800", "text", "user", "float", "base64"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
NAMES = [
    *UNSUPPORTED, "prompt", "messages", "input", "model", "max_tokens", "max_completion_tokens", "temperature", "top_p",
    "seed", "stop", "stream", "stream_options", "logprobs", "top_logprobs", "ignore_eos", "return_token_ids",
    "encoding_format", "dimensions",
]  # fmt: skip
MESSAGES = st.lists(st.fixed_dictionaries({"role": st.just("user") | JSON, "content": st.just("x") | JSON}), max_size=3)
BODIES = st.dictionaries(st.sampled_from(NAMES), JSON, max_size=6)


def outcome(parse: Callable[..., Any], operation: Operation, body: Any, *more: Any) -> tuple[Any, ApiError | None]:
    """As the server does it: what its description refuses is not read, and all else is."""
    refused = fault(body, operation.body or {})
    if refused is not None:
        return None, ApiError(400, refused.message, refused.param, refused.code)
    try:
        return parse(body, "served", *more), None
    except ApiError as e:
        return None, e


def is_client_s_fault(error: ApiError) -> bool:
    return error.status in (400, 404) and bool(error.message)


@given(BODIES, st.just("a text") | st.lists(st.integers(-1, 300), max_size=4) | JSON)
def test_any_completion_body_is_read_or_refused_with_its_reason(body: dict[str, Any], prompt: Any) -> None:
    read, error = outcome(parse_completion, completions(256), {**body, "prompt": prompt})
    assert is_client_s_fault(error) if error else 0 <= read[0].sampling.temperature <= 2


@given(BODIES, MESSAGES | JSON)
def test_any_chat_body_is_read_or_refused_with_its_reason(body: dict[str, Any], messages: Any) -> None:
    read, error = outcome(parse_chat, chat(), {**body, "messages": messages})
    assert is_client_s_fault(error) if error else all(set(m) <= {"role", "content", "name"} for m in read[1])


@given(BODIES, st.just("a text") | st.lists(st.text(max_size=3), max_size=3) | JSON)
def test_any_embeddings_body_is_read_or_refused_with_its_reason(body: dict[str, Any], texts: Any) -> None:
    read, error = outcome(embeddings.parse, embeddings.operation(256, 32), {**body, "input": texts}, 32)
    assert is_client_s_fault(error) if error else bool(read.texts) != bool(read.ids)


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_what_would_change_the_answer_is_refused_and_what_would_not_is_let_through(name: str) -> None:
    neutral = UNSUPPORTED[name][0]
    (ask, _), error = outcome(parse_completion, completions(256), {"prompt": "x", name: neutral})
    assert (ask, error) == (Ask(16, ask.sampling), None)
    _, error = outcome(parse_completion, completions(256), {"prompt": "x", name: {"anything": "else"}})
    assert error is not None
    assert (error.param, error.code) == (name, "unsupported_parameter")


@pytest.mark.parametrize("prompt", [[5, 7], [[5, 7]]])
def test_one_prompt_may_come_as_a_list(prompt: Any) -> None:
    assert parse_completion({"prompt": prompt}, "served")[1] == (5, 7)
    assert parse_completion({"prompt": ["x"]}, "served")[1] == "x"


def test_a_message_of_parts_is_one_text() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [{"role": "system"}, {"role": "user", "content": parts, "name": "me"}]
    assert parse_chat({"messages": messages}, "served")[1] == (
        {"role": "system", "content": ""},
        {"role": "user", "content": "a\nb", "name": "me"},
    )


def test_max_completion_tokens_goes_before_max_tokens() -> None:
    messages = [{"role": "user", "content": "x"}]
    ask, _ = parse_chat({"messages": messages, "max_tokens": 5, "max_completion_tokens": 7}, "served")
    assert ask.max_tokens == 7


def test_whole_numbers_are_fine_where_numbers_are() -> None:
    ask, _ = parse_completion({"prompt": "x", "temperature": 1, "top_p": 1}, "served")
    assert (ask.sampling.temperature, ask.sampling.top_p) == (1.0, 1.0)
