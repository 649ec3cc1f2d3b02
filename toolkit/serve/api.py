"""Request bodies in, OpenAI-shaped errors out: what both built-in servers read and refuse in the same way."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from aiohttp.web_exceptions import HTTPException

from toolkit.serve import validation
from toolkit.serve.validation import Schema

MAX_BODY_BYTES = 16 * 1024 * 1024
BODY_TIMEOUT_S = 30.0


@dataclass(eq=False)
class ApiError(Exception):
    """An answer in OpenAI's error shape. ``param`` names the guilty field of the body."""

    status: int
    message: str
    param: str | None = None
    code: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """OpenAI's ``type`` of this error."""
        kinds = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
        return kinds.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")

    def document(self) -> dict[str, Any]:
        """The body of the answer."""
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}
        return {"error": error}

    def response(self) -> web.Response:
        """The whole answer."""
        return web.json_response(self.document(), status=self.status, headers=self.headers)


def from_http(error: HTTPException) -> ApiError:
    """The same refusal (404, 405, 413 and so on) in OpenAI's shape."""
    headers = {name: value for name, value in error.headers.items() if name in ("Allow", "Retry-After")}
    return ApiError(error.status, error.text or error.reason, headers=headers)


async def read_object(request: web.Request, schema: Schema, *, empty_is_object: bool = False) -> dict[str, Any]:
    """The JSON object of a request's body, which is what the schema says.

    Raises: ApiError 400 when it is not, 408 when it does not arrive in time, 415 when it is said to be something else;
    HTTPException 413 when it is over 16 MiB.
    """
    raw = await _read(request)
    if raw:
        _check_content_type(request)
    body = {} if empty_is_object and not raw else _parsed(raw)
    fault = validation.fault(body, {"type": "object", **schema})
    if fault is not None:
        raise ApiError(400, fault.message, fault.param, fault.code)
    checked: dict[str, Any] = body
    return checked


def _check_content_type(request: web.Request) -> None:
    # aiohttp says octet-stream where nothing is said; then JSON is meant.
    given = request.content_type
    if given not in ("application/json", "application/octet-stream") and not given.endswith("+json"):
        message = f"the content type is '{given}'; send JSON as 'application/json'"
        raise ApiError(415, message, code="unsupported_media_type")


async def _read(request: web.Request) -> bytes:
    try:
        if request.content.is_eof():
            return await request.read()
        return await asyncio.wait_for(request.read(), BODY_TIMEOUT_S)
    except asyncio.TimeoutError:
        message = f"the body did not arrive within {BODY_TIMEOUT_S:g} s"
        raise ApiError(408, message, code="request_timeout", headers={"Connection": "close"}) from None
    except web.RequestPayloadError as e:
        raise ApiError(400, f"the body cannot be read: {e}") from e


def _parsed(raw: bytes) -> Any:
    try:
        return json.loads(raw, parse_constant=_refuse_constant, parse_float=_number)
    except (ValueError, RecursionError) as e:
        raise ApiError(400, f"the body is not valid JSON: {e}") from e


def _number(literal: str) -> float:
    # To JSON 1.0 is as whole a number as 1.
    value = float(literal)
    return int(value) if value.is_integer() else value


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def given(body: Mapping[str, Any], name: str, default: Any = None) -> Any:
    """The value of a checked body's field; the default where it is absent or null."""
    value = body.get(name)
    return default if value is None else value


def check_model(body: Mapping[str, Any], served: str) -> None:
    """Nothing when ``model`` is absent or the served name. Raises: ApiError 404."""
    model = given(body, "model", served)
    if model != served:
        message = f"the model '{model}' does not exist; this server has '{served}'"
        raise ApiError(404, message, "model", "model_not_found")
