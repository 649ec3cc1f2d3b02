"""The OpenAPI description of a built-in server, out of the schemas by which its requests are checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from toolkit import __version__
from toolkit.serve import schemas as s
from toolkit.serve.validation import Schema

OPENAPI = "3.1.0"
TOKEN_HEADER = "X-Coexist-Token"  # noqa: S105 - a header's name
ANYTHING: Schema = {}
_ERRORS = {
    400: "The body is not JSON, or a field of it is wrong.",
    401: "The attempt's token is missing or wrong.",
    404: "Another model than the served one was asked for.",
    408: "The body did not arrive in time.",
    409: "The server is draining.",
    413: "The body is over 16 MiB.",
    415: "The body is said to be something else than JSON.",
    429: "Too many wait already; Retry-After says when to come again.",
    500: "The model failed on this request.",
    503: "Not serving yet, or no longer; Retry-After says when to come again.",
}
OF_BODIES = (400, 408, 413, 415)
OF_INFERENCE = (*OF_BODIES, 404, 429, 500, 503)


@dataclass(frozen=True)
class Operation:
    """One method of one path. ``answer`` is what 200 holds, by content type; ``errors`` are OpenAI-shaped.

    ``others`` are answers of further statuses that are no errors in that shape.
    """

    method: str
    path: str
    summary: str
    answer: Mapping[str, Schema]
    errors: Sequence[int] = ()
    body: Schema | None = None
    body_required: bool = True
    token: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)
    others: Mapping[int, Schema] = field(default_factory=dict)


def json_of(schema: Schema) -> Mapping[str, Schema]:
    """An answer in JSON."""
    return {"application/json": schema}


def document(title: str, operations: Sequence[Operation]) -> dict[str, Any]:
    """The whole description."""
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method] = _described(operation)
    scheme = {"type": "apiKey", "in": "header", "name": TOKEN_HEADER, "description": "The attempt's token."}
    components = {"schemas": {"Error": s.ERROR}, "securitySchemes": {"token": scheme}}
    info = {"title": title, "version": __version__}
    return {"openapi": OPENAPI, "info": info, "paths": paths, "components": components}


def _described(operation: Operation) -> dict[str, Any]:
    name = operation.path.strip("/").replace("/", "_").replace(".", "_")
    described: dict[str, Any] = {"operationId": f"{operation.method}_{name}", "summary": operation.summary}
    if operation.body is not None:
        content = {"application/json": {"schema": operation.body}}
        described["requestBody"] = {"required": operation.body_required, "content": content}
    if operation.token:
        described["security"] = [{"token": []}]
    return {**described, "responses": _responses(operation)}


def _responses(operation: Operation) -> dict[str, Any]:
    headers = {name: {"description": about, "schema": s.text()} for name, about in operation.headers.items()}
    good = {"description": "Done.", "content": _content(operation.answer), **({"headers": headers} if headers else {})}
    others = {str(n): {"description": "Not now.", "content": _content(json_of(x))} for n, x in operation.others.items()}
    return {"200": good, **others, **{str(number): _error(number) for number in sorted(operation.errors)}}


def _content(answer: Mapping[str, Schema]) -> dict[str, Any]:
    return {kind: {"schema": schema} for kind, schema in answer.items()}


def _error(number: int) -> dict[str, Any]:
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    return {"description": _ERRORS[number], "content": content}


# What both servers have.

_STAGE = s.one_of("preload", "loaded", "serving", "draining")
_STAGED = s.record({"stage": _STAGE}, "stage")
_KEYS = s.listing(s.text())
_SECONDS = s.optional(s.number(0))
WARMUP_BODY = s.record(
    {"mode": s.optional(s.one_of("full", "single", about="Every shape, which is the default, or the first one."))}
)
_MODEL = s.record(
    {"id": s.text(), "object": s.one_of("model"), "created": s.integer(0), "owned_by": s.text()},
    "id", "object", "created", "owned_by",
)  # fmt: skip
_WHOLE_STAGE = s.record(
    {
        "stage": _STAGE,
        "parts": {**s.record({}), "additionalProperties": _SECONDS},
        "memory_bytes": {**s.record({}), "additionalProperties": {"type": "object"}},
        "bytes_read": s.integer(0),
        "compile_events": s.integer(0),
        "attention": s.optional(s.text("The attention path that ran.")),
        "in_flight": s.integer(0),
    },
    "stage", "parts", "memory_bytes", "bytes_read", "compile_events", "attention", "in_flight",
)  # fmt: skip
SHARED = (
    Operation("get", "/health", "200 while serving, 503 otherwise.", json_of(_STAGED), others={503: _STAGED}),
    Operation("get", "/health_generate", "Runs one token or text.", json_of(_STAGED), (429, 503)),
    Operation("get", "/metrics", "Prometheus metrics.", {"text/plain": s.text()}),
    Operation("get", "/openapi.json", "This description.", json_of(s.OBJECT)),
    Operation(
        "get", "/v1/models", "The served model.",
        json_of(s.record({"object": s.one_of("list"), "data": s.listing(_MODEL, 1, 1)}, "object", "data")),
    ),
    Operation("get", "/v1/stage", "Where the server stands.", json_of(_WHOLE_STAGE)),
    Operation(
        "get", "/v1/warmup/keys", "The shapes that a warm-up runs, and what was compiled so far.",
        json_of(s.record({"keys": _KEYS, "done": _KEYS, "compiled": _KEYS}, "keys", "done", "compiled")), (503,),
    ),
    Operation(
        "post", "/v1/warmup", "Runs every shape.",
        json_of(s.record({"keys": _KEYS, "ran": s.integer(0), "seconds": s.number(0)}, "keys", "ran", "seconds")),
        (*OF_BODIES, 401, 500, 503), WARMUP_BODY, body_required=False, token=True,
    ),
    Operation("post", "/v1/register", "Everybody is answered.", json_of(_STAGED), (401, 409, 503), token=True),
    Operation(
        "post", "/v1/drain", "Answers when nothing is in flight.",
        json_of(s.record({"stage": _STAGE, "in_flight": s.integer(0)}, "stage", "in_flight")), (401,), token=True,
    ),
)  # fmt: skip
