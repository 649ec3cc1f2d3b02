"""OpenAI's embeddings: checked bodies to frozen requests, vectors to the response shape."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from toolkit.serve import schemas as s
from toolkit.serve.api import ApiError, check_model, given
from toolkit.serve.openapi import OF_INFERENCE, Operation, json_of

if TYPE_CHECKING:
    from torch import Tensor

    from toolkit.serve.batcher import Tokens

PATH = "/v1/embeddings"
MAX_INPUTS = 2048  # OpenAI's limit of one request
TRUNCATED_HEADER = "X-Coexist-Truncated"
TRUNCATE = s.optional(s.boolean("What is too long is cut, which is the default; false: it is refused."))
TRUNCATED = s.listing(s.integer(0), about="The indices of what was cut to the model's longest text.")
HEADERS = {TRUNCATED_HEADER: "The indices of what was cut, with commas between."}


@dataclass(frozen=True)
class Ask:
    """What one request wants. Inputs are all texts or all ids."""

    texts: tuple[str, ...]
    ids: tuple[tuple[int, ...], ...]
    base64: bool
    dimensions: int
    truncate: bool


def operation(vocab_size: int | None, dimension: int | None) -> Operation:
    """What ``/v1/embeddings`` takes and gives; None: not known before the model is loaded."""
    ids = s.token_ids(vocab_size)
    texts = s.listing(s.text(), 1, MAX_INPUTS)
    body = {
        "input": s.either(s.text(), texts, ids, s.listing(ids, 1, MAX_INPUTS)),
        "model": s.MODEL,
        "encoding_format": s.optional(s.one_of("float", "base64", about="base64: little-endian float32.")),
        "dimensions": s.optional(s.integer(1, dimension, "So many first ones, scaled where the model scales.")),
        "truncate": TRUNCATE,
    }
    summary = "An embedding of each text, in their order."
    return Operation("post", PATH, summary, json_of(_ANSWER), OF_INFERENCE, s.record(body, "input"), headers=HEADERS)


USAGE = s.record({"prompt_tokens": s.integer(0), "total_tokens": s.integer(0)}, "prompt_tokens", "total_tokens")
_VECTOR = s.either(s.listing(s.number()), s.text("base64"))
_ENTRY = s.record(
    {"object": s.one_of("embedding"), "index": s.integer(0), "embedding": _VECTOR}, "object", "index", "embedding"
)
_ANSWER = s.record(
    {
        "object": s.one_of("list"),
        "data": s.listing(_ENTRY, 1),
        "model": s.text(),
        "usage": USAGE,
        "truncated": TRUNCATED,
    },
    "object", "data", "model", "usage", "truncated",
)  # fmt: skip


def parse(body: Mapping[str, Any], served_model: str, dimension: int) -> Ask:
    """What a checked body asks. Raises: ApiError 404."""
    check_model(body, served_model)
    texts, ids = _inputs(body["input"])
    return Ask(
        texts,
        ids,
        base64=body.get("encoding_format") == "base64",
        dimensions=given(body, "dimensions", dimension),
        truncate=given(body, "truncate", True),
    )


def _inputs(value: Any) -> tuple[tuple[str, ...], tuple[tuple[int, ...], ...]]:
    several = value if isinstance(value, list) and not isinstance(value[0], int) else [value]
    if isinstance(several[0], str):
        return tuple(several), ()
    return (), tuple(map(tuple, several))


def cut(tokens: Sequence[Tokens], param: str, limit: int, *, allowed: bool) -> list[int]:
    """The indices of what was cut. Raises: ApiError 400 where that is not allowed."""
    indices = [index for index, one in enumerate(tokens) if one.truncated]
    if indices and not allowed:
        place = f"{param}[{indices[0]}]" if len(tokens) > 1 else param
        message = f"{place} is longer than {limit} tokens, the most that this model takes"
        raise ApiError(400, message, param, "context_length_exceeded")
    return indices


def cut_headers(truncated: Sequence[int]) -> dict[str, str]:
    """The header that tells the same."""
    return {TRUNCATED_HEADER: ",".join(map(str, truncated))} if truncated else {}


def vector(row: Tensor, ask: Ask, *, normalize: bool) -> list[float] | str:
    """One embedding as the client wants it; with ``normalize`` a shortened one has length 1 again."""
    if ask.dimensions < row.numel():
        row = row[: ask.dimensions]
        row = row / row.norm().clamp(min=1e-12) if normalize else row
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
