"""What a completion answer says, whole or as server-sent events. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Piece:
    """One event or one whole answer; ``text`` empty: no content token in it (a keep-alive, a role, an empty delta)."""

    text: str = ""
    token_ids: tuple[int, ...] | None = None
    finished: bool = False
    error: str | None = None


def split_events(buffer: bytes) -> tuple[list[str], bytes]:
    """The data of each complete event in ``buffer``, and the rest; comments and fields other than data are dropped."""
    *blocks, rest = buffer.replace(b"\r\n", b"\n").split(b"\n\n")
    events = [_data_of(block.decode("utf-8", "replace")) for block in blocks]
    return [event for event in events if event is not None], rest


def _data_of(block: str) -> str | None:
    lines = [line[5:].removeprefix(" ") for line in block.split("\n") if line.startswith("data:")]
    return "\n".join(lines) if lines else None


def read_piece(body: str) -> Piece:
    """What a completion or chat completion says, whole or one event of it; ``[DONE]`` finishes.

    Raises: ValueError when it is not JSON of a completion.
    """
    if body.strip() == "[DONE]":
        return Piece(finished=True)
    document = json.loads(body)
    if not isinstance(document, Mapping):
        raise ValueError("not a JSON object")
    if document.get("error"):
        return Piece(error=_error_text(document["error"]))
    choices = document.get("choices")
    if not isinstance(choices, list):
        raise ValueError("no 'choices' in the answer")
    return _piece(choices[0]) if choices and isinstance(choices[0], Mapping) else Piece()


def read_embedding(body: str) -> tuple[float, ...]:
    """The first vector of an embeddings answer.

    Raises: ValueError when there is none.
    """
    document = json.loads(body)
    data = document.get("data") if isinstance(document, Mapping) else None
    vector = data[0].get("embedding") if isinstance(data, list) and data and isinstance(data[0], Mapping) else None
    if not isinstance(vector, list) or not vector or not all(isinstance(x, (int, float)) for x in vector):
        raise ValueError("no 'data[0].embedding' in the answer")
    return tuple(float(x) for x in vector)


def _piece(choice: Mapping[str, Any]) -> Piece:
    message = choice.get("delta") or choice.get("message") or {}
    text = choice.get("text") or (message.get("content") if isinstance(message, Mapping) else None)
    tokens = choice.get("token_ids")
    return Piece(
        text=text if isinstance(text, str) else "",
        token_ids=tuple(tokens) if isinstance(tokens, list) else None,
        finished=choice.get("finish_reason") is not None,
    )


def _error_text(error: object) -> str:
    message = error.get("message") if isinstance(error, Mapping) else error
    return str(message)
