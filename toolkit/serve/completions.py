"""OpenAI's completions and chat completions: bodies to frozen requests, tokens to the two response shapes."""

from __future__ import annotations

import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from toolkit.serve.api import ApiError, Fields, check_text, check_token_ids, is_token_ids
from toolkit.serve.generation import Piece
from toolkit.serve.sampling import Sampling, Token

MAX_STOPS = 16
_ONE_PROMPT = "prompt must be one text or one non-empty list of token ids; send several prompts as several requests"
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


def parse_completion(body: Mapping[str, Any], served_model: str, vocab_size: int) -> tuple[Ask, Prompt]:
    """What a body of ``/v1/completions`` asks, and its prompt. Raises: ApiError 400, 404."""
    fields = Fields(body)
    logprobs = fields.integer("logprobs", None, 0, MAX_LOGPROBS)
    limit = fields.integer("max_tokens", DEFAULT_COMPLETION_TOKENS, 1, 2**31)
    return _ask(fields, served_model, limit, logprobs), _prompt(body.get("prompt"), vocab_size)


def parse_chat(body: Mapping[str, Any], served_model: str) -> tuple[Ask, Messages]:
    """What a body of ``/v1/chat/completions`` asks, and its messages. Raises: ApiError 400, 404."""
    fields = Fields(body)
    top = fields.integer("top_logprobs", 0, 0, MAX_LOGPROBS)
    logprobs = top if fields.boolean("logprobs") else None
    limit = fields.integer("max_completion_tokens", fields.integer("max_tokens", None, 1, 2**31), 1, 2**31)
    return _ask(fields, served_model, limit, logprobs), _messages(body.get("messages"))


def _ask(fields: Fields, served_model: str, max_tokens: int | None, logprobs: int | None) -> Ask:
    fields.check_model(served_model)
    for name, neutral in UNSUPPORTED.items():
        fields.refuse(name, *neutral)
    temperature = fields.number("temperature", 1.0, 0.0, 2.0)
    top_p = fields.number("top_p", 1.0, 0.0, 1.0)
    seed = fields.integer("seed", None, -MAX_SEED, MAX_SEED)
    return Ask(
        max_tokens=max_tokens,
        sampling=Sampling(temperature, top_p, seed, logprobs),
        stops=_stops(fields.get("stop")),
        stream=fields.boolean("stream"),
        include_usage=_include_usage(fields.get("stream_options")),
        ignore_eos=fields.boolean("ignore_eos"),
        return_token_ids=fields.boolean("return_token_ids"),
    )


def _prompt(value: object, vocab_size: int) -> Prompt:
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], (str, list)):
        value = value[0]
    if is_token_ids(value):
        return check_token_ids(value, vocab_size, "prompt")  # type: ignore[arg-type]
    if isinstance(value, list):
        raise ApiError(400, _ONE_PROMPT, "prompt")
    return check_text(value, "prompt")


def _messages(value: object) -> Messages:
    if not isinstance(value, list) or not value:
        raise ApiError(400, "messages must be a non-empty list", "messages")
    return tuple(_message(item, f"messages[{index}]") for index, item in enumerate(value))


def _message(value: object, where: str) -> Mapping[str, str]:
    if not isinstance(value, dict):
        raise ApiError(400, f"{where} must be an object with role and content", where)
    message = {"role": check_text(value.get("role"), f"{where}.role")}
    message["content"] = _content(value.get("content"), f"{where}.content")
    if value.get("name") is not None:
        message["name"] = check_text(value["name"], f"{where}.name")
    return message


def _content(value: object, where: str) -> str:
    if not isinstance(value, list):
        return "" if value is None else check_text(value, where)
    texts = []
    for index, part in enumerate(value):
        if not isinstance(part, dict) or part.get("type") != "text":
            raise ApiError(400, f"{where}[{index}] must be a part of type 'text'", where)
        texts.append(check_text(part.get("text"), f"{where}[{index}].text"))
    return "\n".join(texts)


def _stops(value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or len(stops) > MAX_STOPS:
        raise ApiError(400, f"stop must be a text or a list of at most {MAX_STOPS} texts", "stop")
    texts = tuple(check_text(stop, "stop") for stop in stops)
    if "" in texts:
        raise ApiError(400, "stop must not hold an empty text", "stop")
    return texts


def _include_usage(value: object) -> bool:
    if value is None:
        return False
    if not isinstance(value, dict):
        raise ApiError(400, "stream_options must be an object", "stream_options")
    return Fields(value).boolean("include_usage")


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
