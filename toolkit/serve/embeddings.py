"""OpenAI's embeddings: bodies to frozen requests, vectors to the response shape."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from toolkit.serve.api import ApiError, Fields, check_text, check_token_ids, is_token_ids

if TYPE_CHECKING:
    from torch import Tensor

MAX_INPUTS = 2048  # OpenAI's limit of one request
TRUNCATED_HEADER = "X-Coexist-Truncated"


@dataclass(frozen=True)
class Ask:
    """What one request wants. Inputs are all texts or all ids."""

    texts: tuple[str, ...]
    ids: tuple[tuple[int, ...], ...]
    base64: bool
    dimensions: int


def parse(body: Mapping[str, Any], served_model: str, vocab_size: int, dimension: int) -> Ask:
    """What a body of ``/v1/embeddings`` asks. Raises: ApiError 400, 404."""
    fields = Fields(body)
    fields.check_model(served_model)
    encoding = fields.text("encoding_format", "float")
    if encoding not in ("float", "base64"):
        raise ApiError(400, f"encoding_format '{encoding}' is neither 'float' nor 'base64'", "encoding_format")
    dimensions = fields.integer("dimensions", dimension, 1, dimension)
    texts, ids = _inputs(body.get("input"), vocab_size)
    return Ask(texts, ids, encoding == "base64", dimensions or dimension)


def _inputs(value: object, vocab_size: int) -> tuple[tuple[str, ...], tuple[tuple[int, ...], ...]]:
    if isinstance(value, str):
        value = [value]
    if is_token_ids(value):
        value = [value]
    if not isinstance(value, list) or not value:
        raise ApiError(400, "input must be a text, a list of texts, token ids, or a list of them", "input")
    if len(value) > MAX_INPUTS:
        raise ApiError(400, f"input has {len(value)} entries; the limit is {MAX_INPUTS}", "input")
    if all(is_token_ids(item) for item in value):
        return (), tuple(check_token_ids(item, vocab_size, f"input[{i}]") for i, item in enumerate(value))
    return tuple(check_text(item, f"input[{i}]") for i, item in enumerate(value)), ()


def vector(row: Tensor, ask: Ask) -> list[float] | str:
    """One embedding as the client wants it; a shortened one has length 1 again."""
    if ask.dimensions < row.numel():
        row = row[: ask.dimensions]
        row = row / row.norm().clamp(min=1e-12)
    if ask.base64:
        return base64.b64encode(row.numpy().astype("<f4").tobytes()).decode()
    values: list[float] = row.tolist()
    return values


def answer(model: str, vectors: Sequence[list[float] | str], tokens: int, truncated: Sequence[int]) -> bytes:
    """The body of the answer; ``truncated`` are the indices of inputs that were cut."""
    data = [{"object": "embedding", "index": i, "embedding": value} for i, value in enumerate(vectors)]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    document = {"object": "list", "data": data, "model": model, "usage": usage, "truncated": list(truncated)}
    return json.dumps(document).encode()
