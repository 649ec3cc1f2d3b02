"""Reranking as Cohere and Jina shape it: checked bodies to frozen requests, scores to the response shape."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from toolkit.serve import schemas as s
from toolkit.serve.api import check_model, given
from toolkit.serve.embeddings import HEADERS, TRUNCATE, TRUNCATED, USAGE
from toolkit.serve.openapi import OF_INFERENCE, Operation, json_of

PATH = "/v1/rerank"
MAX_DOCUMENTS = 2048

_DOCUMENT = s.record({"text": s.text()}, "text")
BODY = s.record(
    {
        "query": s.text(),
        "documents": s.listing(s.either(s.text(), _DOCUMENT), 1, MAX_DOCUMENTS),
        "model": s.MODEL,
        "top_n": s.optional(s.integer(1, about="So many best ones; absent: all.")),
        "return_documents": s.optional(s.boolean("Each result has its document; default false.")),
        "truncate": TRUNCATE,
    },
    "query", "documents",
)  # fmt: skip
_RESULT = s.record(
    {"index": s.integer(0), "relevance_score": s.number(), "document": _DOCUMENT}, "index", "relevance_score"
)
_ANSWER = s.record(
    {
        "id": s.text(),
        "object": s.one_of("list"),
        "model": s.text(),
        "scoring": s.one_of(
            "sigmoid", "logit", "cosine", about="What scores are: a cross-encoder's, or the cosine of embeddings."
        ),
        "results": s.listing(_RESULT, 1, about="The best one first."),
        "usage": USAGE,
        "truncated": TRUNCATED,
    },
    "id", "object", "model", "scoring", "results", "usage", "truncated",
)  # fmt: skip
OPERATION = Operation(
    "post", PATH, "Documents by their relevance to a query.", json_of(_ANSWER), OF_INFERENCE, BODY, headers=HEADERS
)


@dataclass(frozen=True)
class Ask:
    """What one request wants."""

    query: str
    documents: tuple[str, ...]
    top_n: int
    return_documents: bool
    truncate: bool


def parse(body: Mapping[str, Any], served_model: str) -> Ask:
    """What a checked body asks. Raises: ApiError 404."""
    check_model(body, served_model)
    documents = tuple(one if isinstance(one, str) else one["text"] for one in body["documents"])
    return Ask(
        query=body["query"],
        documents=documents,
        top_n=min(given(body, "top_n", len(documents)), len(documents)),
        return_documents=given(body, "return_documents", False),
        truncate=given(body, "truncate", True),
    )


def results(ask: Ask, scores: Sequence[float]) -> list[dict[str, Any]]:
    """The best documents, best first; of equal ones the earlier first."""
    best = sorted(range(len(scores)), key=lambda index: -scores[index])[: ask.top_n]
    return [{"index": index, "relevance_score": scores[index], **_document(ask, index)} for index in best]


def _document(ask: Ask, index: int) -> dict[str, Any]:
    return {"document": {"text": ask.documents[index]}} if ask.return_documents else {}


def answer(
    model: str, scoring: str, ranked: Sequence[Mapping[str, Any]], tokens: int, truncated: Sequence[int]
) -> dict[str, Any]:
    """The body of the answer; ``truncated`` are the indices of documents that were cut."""
    return {
        "id": f"rerank-{uuid.uuid4().hex}",
        "object": "list",
        "model": model,
        "scoring": scoring,
        "results": list(ranked),
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        "truncated": list(truncated),
    }
