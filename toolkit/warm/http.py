"""Requests to an instance: the only place of the warm-up that talks. Failures are one line without secrets."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import aiohttp

from toolkit.runtimes.base import Generation, HttpProbe
from toolkit.warm import sse
from toolkit.warm.model import Clock, Target

TOKEN_HEADER = "X-Coexist-Token"  # noqa: S105  the header's name, not a token
# A program that compiles on its first request may take minutes for it.
GENERATION_TIMEOUT_S = 300.0
SHOWN_CHARS = 160
MAX_EVENT_BYTES = 1 << 20
NOT_YET_STATUSES = frozenset({429, 502, 503, 504})


class RequestFailedError(Exception):
    """One request went wrong; ``not_yet``: the server may only need more time."""

    def __init__(self, reason: str, *, not_yet: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.not_yet = not_yet


async def send(target: Target, http: aiohttp.ClientSession, probe: HttpProbe) -> str:
    """The body of the answer to one probe.

    Raises: RequestFailedError when there is none or it is not what the probe expects.
    """
    name = f"{probe.method} {probe.path}"
    try:
        async with http.request(
            probe.method,
            target.base_url + probe.path,
            json=probe.body,
            headers=dict(probe.headers),
            timeout=aiohttp.ClientTimeout(total=probe.timeout_s),
            allow_redirects=False,
        ) as response:
            body = (await response.read()).decode("utf-8", "replace")
            _check_status(name, response, body, probe.expect_status, probe.headers)
    except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as error:
        raise _unreachable(name, error, probe.timeout_s) from error
    if probe.expect_text is not None and probe.expect_text not in body:
        shown = shorten(body, probe.headers)
        raise RequestFailedError(f"{name}: the answer does not contain '{probe.expect_text}': {shown}")
    return body


def completion_body(generation: Generation, prompt: str, max_tokens: int, stream: bool) -> dict[str, Any]:
    """The JSON of one greedy completion (or chat completion, by path)."""
    chat = generation.path.endswith("/chat/completions")
    asked = {"messages": [{"role": "user", "content": prompt}]} if chat else {"prompt": prompt}
    body = {**asked, "max_tokens": max_tokens, "temperature": 0, "stream": stream}
    return body if generation.model is None else {"model": generation.model, **body}


def generation_probe(generation: Generation, body: Any, headers: Mapping[str, str]) -> HttpProbe:
    """One request to the path that generates."""
    return HttpProbe(generation.path, "POST", body, headers, timeout_s=GENERATION_TIMEOUT_S)


async def complete(target: Target, http: aiohttp.ClientSession, prompt: str, max_tokens: int) -> sse.Piece:
    """A whole greedy completion, with the token of the attempt.

    Raises: RequestFailedError.
    """
    generation = _generation(target)
    body = completion_body(generation, prompt, max_tokens, stream=False)
    answer = await send(target, http, generation_probe(generation, body, generation.headers))
    return _parsed(generation.path, answer)


async def embed(
    target: Target, http: aiohttp.ClientSession, text: str, headers: Mapping[str, str]
) -> tuple[float, ...]:
    """The embedding of ``text``.

    Raises: RequestFailedError.
    """
    generation = _generation(target)
    body = {"input": text} if generation.model is None else {"model": generation.model, "input": text}
    answer = await send(target, http, generation_probe(generation, body, headers))
    try:
        return sse.read_embedding(answer)
    except ValueError as error:
        raise RequestFailedError(f"POST {generation.path}: {error}: {shorten(answer, headers)}") from error


async def first_token_ms(
    target: Target, http: aiohttp.ClientSession, clock: Clock, prompt: str, max_tokens: int, headers: Mapping[str, str]
) -> float | None:
    """Milliseconds until the first content token of a streamed completion; None when the answer has no text at all.

    Raises: RequestFailedError, also when the answer breaks off before its end.
    """
    generation = _generation(target)
    probe = generation_probe(generation, completion_body(generation, prompt, max_tokens, stream=True), headers)
    name = f"POST {probe.path}"
    started = clock.now()
    try:
        async with http.post(
            target.base_url + probe.path,
            json=probe.body,
            headers=dict(headers),
            timeout=aiohttp.ClientTimeout(total=probe.timeout_s),
            allow_redirects=False,
        ) as response:
            if response.status != 200:
                body = (await response.read()).decode("utf-8", "replace")
                _check_status(name, response, body, 200, headers)
            first_s = await _read_stream(response, clock, probe)
    except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as error:
        raise _unreachable(name, error, probe.timeout_s) from error
    return None if first_s is None else (first_s - started) * 1000


async def _read_stream(response: aiohttp.ClientResponse, clock: Clock, probe: HttpProbe) -> float | None:
    """The clock at the first text; the answer is read to its end, so that the next request finds the server idle."""
    if response.content_type != "text/event-stream":
        piece = _parsed(probe.path, (await response.read()).decode("utf-8", "replace"))
        return clock.now() if piece.text else None
    first_s: float | None = None
    buffer, finished = b"", False
    async for chunk in response.content.iter_any():
        events, buffer = sse.split_events(buffer + chunk)
        pieces = [_parsed(probe.path, event, event=True) for event in events]
        if first_s is None and any(piece.text for piece in pieces):
            first_s = clock.now()
        finished = finished or any(piece.finished for piece in pieces)
        if len(buffer) > MAX_EVENT_BYTES:
            raise RequestFailedError(f"POST {probe.path}: an event of the stream is over {MAX_EVENT_BYTES} bytes")
    if not finished:
        raise RequestFailedError(f"POST {probe.path}: the stream ended before the answer did")
    return first_s


def shorten(text: str, headers: Mapping[str, str]) -> str:
    """The beginning of ``text`` on one line, with every header value taken out."""
    for value in filter(None, headers.values()):
        text = text.replace(value, "***")
    line = " ".join(text.split())
    return line if len(line) <= SHOWN_CHARS else line[:SHOWN_CHARS] + "…"


def _parsed(path: str, body: str, *, event: bool = False) -> sse.Piece:
    try:
        piece = sse.read_event(body) if event else sse.read_answer(body)
    except ValueError as error:
        raise RequestFailedError(
            f"POST {path}: the answer is not a completion ({error}): {shorten(body, {})}"
        ) from error
    if piece.error is not None:
        raise RequestFailedError(f"POST {path}: the server reports: {shorten(piece.error, {})}")
    return piece


def _check_status(
    name: str, response: aiohttp.ClientResponse, body: str, expected: int, headers: Mapping[str, str]
) -> None:
    if response.status == expected:
        return
    shown = shorten(body, headers)
    reason = f"{name}: {response.status} {response.reason or ''}".rstrip() + (f": {shown}" if shown else "")
    raise RequestFailedError(reason, not_yet=response.status in NOT_YET_STATUSES)


def _unreachable(name: str, error: Exception, timeout_s: float) -> RequestFailedError:
    if isinstance(error, asyncio.TimeoutError):
        return RequestFailedError(f"{name}: no answer within {timeout_s:g} s")
    if isinstance(error, aiohttp.ClientConnectorError):
        return RequestFailedError(f"{name}: nothing listens yet", not_yet=True)
    if isinstance(error, (aiohttp.ServerDisconnectedError, ConnectionError)):
        return RequestFailedError(f"{name}: the connection was closed without an answer", not_yet=True)
    if isinstance(error, aiohttp.ClientPayloadError):
        return RequestFailedError(f"{name}: the answer broke off half-way")
    return RequestFailedError(f"{name}: {type(error).__name__}")


def _generation(target: Target) -> Generation:
    if target.probes.generation is None:
        raise RequestFailedError("nothing says how this service is asked for an answer")
    return target.probes.generation
