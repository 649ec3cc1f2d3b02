"""What ``/v1/completions`` and ``/v1/chat/completions`` take and give, as schemas."""

from __future__ import annotations

from typing import Any

from toolkit.serve import schemas as s
from toolkit.serve.completions import DEFAULT_COMPLETION_TOKENS, MAX_LOGPROBS, MAX_SEED, MAX_STOPS, UNSUPPORTED
from toolkit.serve.openapi import ANYTHING, OF_INFERENCE, Operation

COMPLETIONS_PATH = "/v1/completions"
CHAT_PATH = "/v1/chat/completions"
MAX_TOKENS = 2**31
EVENTS = "text/event-stream"

_LIMIT = s.optional(s.integer(1, MAX_TOKENS))
_STOP = s.text(minLength=1)
_COMMON: dict[str, Any] = {
    "model": s.MODEL,
    "temperature": s.optional(s.number(0, 2, "0: greedy. Default 1.")),
    "top_p": s.optional(s.number(0, 1)),
    "seed": s.optional(s.integer(-MAX_SEED, MAX_SEED)),
    "stop": s.optional(s.either(_STOP, s.listing(_STOP, 0, MAX_STOPS))),
    "stream": s.optional(s.boolean("The answer comes as server-sent events.")),
    "stream_options": s.optional(s.record({"include_usage": s.optional(s.boolean())})),
    "ignore_eos": s.optional(s.boolean("The end token does not end the answer.")),
    "return_token_ids": s.optional(s.boolean("Choices have their token ids.")),
    **{name: s.unsupported(*neutral) for name, neutral in UNSUPPORTED.items()},
}
_PART = s.record({"type": s.one_of("text"), "text": s.text()}, "type", "text")
_MESSAGE = s.record(
    {
        "role": s.text(),
        "content": s.optional(s.either(s.text(), s.listing(_PART))),
        "name": s.optional(s.text()),
    },
    "role",
)
_CHAT_BODY = s.record(
    {
        **_COMMON,
        "messages": s.listing(_MESSAGE, 1),
        "max_tokens": _LIMIT,
        "max_completion_tokens": _LIMIT,
        "logprobs": s.optional(s.boolean()),
        "top_logprobs": s.optional(s.integer(0, MAX_LOGPROBS)),
    },
    "messages",
)
_USAGE = s.record(
    {"prompt_tokens": s.integer(0), "completion_tokens": s.integer(0), "total_tokens": s.integer(0)},
    "prompt_tokens", "completion_tokens", "total_tokens",
)  # fmt: skip
_FINISH = s.one_of("stop", "length")


def completions(vocab_size: int | None) -> Operation:
    """``/v1/completions``; None: the vocabulary is not known before the engine is loaded."""
    ids = s.token_ids(vocab_size)
    body = s.record(
        {
            **_COMMON,
            "prompt": s.either(s.text(), s.listing(s.text(), 1, 1), ids, s.listing(ids, 1, 1)),
            "max_tokens": s.optional(s.integer(1, MAX_TOKENS, f"Default {DEFAULT_COMPLETION_TOKENS}.")),
            "logprobs": s.optional(s.integer(0, MAX_LOGPROBS)),
        },
        "prompt",
    )
    choice = {"index": s.integer(0), "text": s.text(), "finish_reason": _FINISH, "logprobs": s.optional(s.OBJECT)}
    answer = _answer("text_completion", s.record(choice, *choice))
    return Operation("post", COMPLETIONS_PATH, "Goes on with a text.", answer, OF_INFERENCE, body)


def _answer(kind: str, choice: dict[str, Any]) -> dict[str, Any]:
    fields = {
        "id": s.text(),
        "object": s.one_of(kind),
        "created": s.integer(0),
        "model": s.text(),
        "choices": s.listing(choice, 1),
        "usage": _USAGE,
    }
    # No schema: it would be read as one of all events together by some, of each event by others.
    return {"application/json": s.record(fields, *fields), EVENTS: ANYTHING}


def chat() -> Operation:
    """``/v1/chat/completions``."""
    message = s.record({"role": s.one_of("assistant"), "content": s.text()}, "role", "content")
    choice = {"index": s.integer(0), "message": message, "finish_reason": _FINISH, "logprobs": s.optional(s.OBJECT)}
    answer = _answer("chat.completion", s.record(choice, *choice))
    return Operation("post", CHAT_PATH, "Answers a conversation.", answer, OF_INFERENCE, _CHAT_BODY)
