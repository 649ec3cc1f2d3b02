"""OpenAI's completions and chat completions: checked bodies to frozen requests, tokens to the two response shapes."""

from __future__ import annotations

import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from toolkit.serve.api import check_model, given
from toolkit.serve.generation import Piece
from toolkit.serve.sampling import Sampling, Token

MAX_STOPS = 16
MAX_LOGPROBS = 20
DEFAULT_COMPLETION_TOKENS = 16  # OpenAI's default of /v1/completions
MAX_SEED = 2**63 - 1

# Fields that would change the answer, with the values that change nothing.
UNSUPPORTED: Mapping[str, tuple[Any, ...]] = {
    "n": (1,), "best_of": (1,), "echo": (False,), "suffix": ("",), "logit_bias": ({},),
    "frequency_penalty": (0, 0.0), "presence_penalty": (0, 0.0), "repetition_penalty": (1, 1.0),
    "top_k": (0, -1), "min_p": (0, 0.0), "tools": ([],), "functions": ([],), "tool_choice": ("none", "auto"),
    "response_format": ({"type": "text"},), "modalities": (["text"],),
}  # fmt: skip


Prompt: TypeAlias = "str | tuple[int, ...]"
Messages: TypeAlias = "tuple[Mapping[str, str], ...]"


@dataclass(frozen=True)
class Ask:
    """How one request wants its answer; ``max_tokens`` None: up to the limit."""

    max_tokens: int | None
    sampling: Sampling
    stops: tuple[str, ...] = ()
    stream: bool = False
    include_usage: bool = False
    ignore_eos: bool = False
    return_token_ids: bool = False


@dataclass
class Usage:
    """Tokens in and out, so far."""

    prompt_tokens: int
    completion_tokens: int = 0

    def document(self) -> dict[str, int]:
        """OpenAI's ``usage``."""
        total = self.prompt_tokens + self.completion_tokens
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": total,
        }


def parse_completion(body: Mapping[str, Any], served_model: str) -> tuple[Ask, Prompt]:
    """What a checked body of ``/v1/completions`` asks, and its prompt. Raises: ApiError 404."""
    limit = given(body, "max_tokens", DEFAULT_COMPLETION_TOKENS)
    return _ask(body, served_model, limit, body.get("logprobs")), _prompt(body["prompt"])


def parse_chat(body: Mapping[str, Any], served_model: str) -> tuple[Ask, Messages]:
    """What a checked body of ``/v1/chat/completions`` asks, and its messages. Raises: ApiError 404."""
    logprobs = given(body, "top_logprobs", 0) if body.get("logprobs") else None
    limit = given(body, "max_completion_tokens", body.get("max_tokens"))
    return _ask(body, served_model, limit, logprobs), tuple(map(_message, body["messages"]))


def _ask(body: Mapping[str, Any], served_model: str, max_tokens: int | None, logprobs: int | None) -> Ask:
    check_model(body, served_model)
    temperature, top_p = float(given(body, "temperature", 1.0)), float(given(body, "top_p", 1.0))
    stops = given(body, "stop", ())
    return Ask(
        max_tokens=max_tokens,
        sampling=Sampling(temperature, top_p, body.get("seed"), logprobs),
        stops=(stops,) if isinstance(stops, str) else tuple(stops),
        stream=given(body, "stream", False),
        include_usage=given(given(body, "stream_options", {}), "include_usage", False),
        ignore_eos=given(body, "ignore_eos", False),
        return_token_ids=given(body, "return_token_ids", False),
    )


def _prompt(value: Any) -> Prompt:
    one = value[0] if isinstance(value, list) and isinstance(value[0], (str, list)) else value
    return one if isinstance(one, str) else tuple(one)


def _message(message: Mapping[str, Any]) -> Mapping[str, str]:
    name = {"name": message["name"]} if message.get("name") is not None else {}
    return {"role": message["role"], "content": _content(message.get("content")), **name}


def _content(value: str | list[Mapping[str, str]] | None) -> str:
    if isinstance(value, list):
        return "\n".join(part["text"] for part in value)
    return value or ""


class Vocabulary(Protocol):
    """What log-probabilities need of the tokenizer."""

    def token_text(self, token_id: int) -> str:
        """The text of one token."""

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of one token."""


@dataclass
class Shape(ABC):
    """Writes the responses of one request; the two subclasses differ in what a choice looks like."""

    model: str
    vocabulary: Vocabulary
    ask: Ask
    prompt_ids: tuple[int, ...]
    usage: Usage
    prefix: str = ""
    object_whole: str = ""
    object_chunk: str = ""
    created_s: int = field(default_factory=lambda: int(time.time()))
    id: str = ""

    def __post_init__(self) -> None:
        self.id = f"{self.prefix}-{uuid.uuid4().hex}"

    def whole(self, text: str, tokens: Sequence[Token], finish: str) -> dict[str, Any]:
        """The one answer of a request that does not stream."""
        choice = {"index": 0, "finish_reason": finish, **self.content(text), **self._ids(tokens)}
        choice["logprobs"] = self._logprobs(tokens)
        head = self._head(self.object_whole)
        if self.ask.return_token_ids:
            choice["prompt_token_ids"] = list(self.prompt_ids)
        return {**head, "choices": [choice], "usage": self.usage.document()}

    def opening(self) -> list[dict[str, Any]]:
        """Chunks that come before the first text."""
        return []

    def chunk(self, piece: Piece) -> dict[str, Any]:
        """One chunk of a stream."""
        choice = {"index": 0, "finish_reason": piece.finish, **self.delta(piece.text), **self._ids(piece.tokens)}
        choice["logprobs"] = self._logprobs(piece.tokens)
        return {**self._head(self.object_chunk), "choices": [choice]}

    def closing(self) -> list[dict[str, Any]]:
        """Chunks that come after the last choice: usage where it was asked for."""
        if not self.ask.include_usage:
            return []
        return [{**self._head(self.object_chunk), "choices": [], "usage": self.usage.document()}]

    def shows(self, piece: Piece) -> bool:
        """True when a chunk of this piece tells the client something."""
        tells_tokens = self.ask.return_token_ids or self.ask.sampling.logprobs is not None
        return bool(piece.text or piece.finish or (piece.tokens and tells_tokens))

    @abstractmethod
    def content(self, text: str) -> dict[str, Any]:
        """The text in a whole answer's choice."""

    @abstractmethod
    def delta(self, text: str) -> dict[str, Any]:
        """The text in a chunk's choice."""

    @abstractmethod
    def logprobs(self, tokens: Sequence[Token]) -> dict[str, Any]:
        """OpenAI's log-probabilities of these tokens."""

    def _logprobs(self, tokens: Sequence[Token]) -> dict[str, Any] | None:
        return self.logprobs(tokens) if self.ask.sampling.logprobs is not None and tokens else None

    def _ids(self, tokens: Sequence[Token]) -> dict[str, Any]:
        return {"token_ids": [token.id for token in tokens]} if self.ask.return_token_ids else {}

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created_s, "model": self.model}


@dataclass
class CompletionShape(Shape):
    """``/v1/completions``."""

    prefix: str = "cmpl"
    object_whole: str = "text_completion"
    object_chunk: str = "text_completion"
    _offset: int = 0

    def content(self, text: str) -> dict[str, Any]:
        """The text in a whole answer's choice."""
        return {"text": text}

    def delta(self, text: str) -> dict[str, Any]:
        """The text in a chunk's choice."""
        return {"text": text}

    def logprobs(self, tokens: Sequence[Token]) -> dict[str, Any]:
        """OpenAI's log-probabilities of these tokens; offsets count characters of the answer."""
        texts = [self.vocabulary.token_text(token.id) for token in tokens]
        offsets = []
        for text in texts:
            offsets.append(self._offset)
            self._offset += len(text)
        return {
            "tokens": texts,
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": [{self.vocabulary.token_text(i): value for i, value in token.top} for token in tokens],
            "text_offset": offsets,
        }


@dataclass
class ChatShape(Shape):
    """``/v1/chat/completions``."""

    prefix: str = "chatcmpl"
    object_whole: str = "chat.completion"
    object_chunk: str = "chat.completion.chunk"

    def opening(self) -> list[dict[str, Any]]:
        """The chunk with the role."""
        choice = {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
        return [{**self._head(self.object_chunk), "choices": [choice]}]

    def content(self, text: str) -> dict[str, Any]:
        """The text in a whole answer's choice."""
        return {"message": {"role": "assistant", "content": text, "refusal": None}}

    def delta(self, text: str) -> dict[str, Any]:
        """The text in a chunk's choice."""
        return {"delta": {"content": text} if text else {}}

    def logprobs(self, tokens: Sequence[Token]) -> dict[str, Any]:
        """OpenAI's log-probabilities of these tokens."""
        entry = self._entry
        content = [
            {**entry(token.id, token.logprob), "top_logprobs": [entry(i, value) for i, value in token.top]}
            for token in tokens
        ]
        return {"content": content, "refusal": None}

    def _entry(self, token_id: int, logprob: float | None) -> dict[str, Any]:
        raw = list(self.vocabulary.token_bytes(token_id))
        return {"token": self.vocabulary.token_text(token_id), "logprob": logprob, "bytes": raw}


ShapeClass = Callable[[str, Vocabulary, Ask, tuple[int, ...], Usage], Shape]
