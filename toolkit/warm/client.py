"""Requests to an instance: the only place of the warm-up that talks. Failures are one line without secrets."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import aiohttp

from toolkit.runtimes.base import Generation, HttpProbe
from toolkit.units import format_bytes
from toolkit.warm import prompts, sse, triton
from toolkit.warm.model import Clock, Target, WarmupError

# A program that compiles on its first request may take minutes for it.
GENERATION_TIMEOUT_S = 300.0
SHOWN_CHARS = 160
MAX_EVENT_BYTES = 1 << 20
# No answer to a probe is nearly as long; one without end would fill the memory of whoever reads it.
MAX_ANSWER_BYTES = 16 << 20
BUSY_STATUS = 429
NOT_YET_STATUSES = frozenset({BUSY_STATUS, 502, 503, 504})
PROBE_TOKENS = 2
# After an answer without text: the first token may be an end token, or half a character.
PROBE_TOKENS_AFTER_EMPTY = 16
MAX_EMPTY_ANSWERS = 8

T = TypeVar("T")


class RequestFailedError(Exception):
    """One request went wrong; ``not_yet``: the server may only need more time; ``status``: what it answered with."""

    def __init__(self, reason: str, *, not_yet: bool = False, status: int | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.not_yet = not_yet
        self.status = status

    @property
    def busy(self) -> bool:
        """It works, and has more to do than it takes."""
        return self.status == BUSY_STATUS

    @property
    def answers_not_yet(self) -> bool:
        """The server itself said so; nobody who listens says nothing."""
        return self.not_yet and self.status is not None


async def or_fail(answer: Awaitable[T]) -> T:
    """The answer.

    Raises: WarmupError ``request_failed`` in place of RequestFailedError.
    """
    try:
        return await answer
    except RequestFailedError as error:
        raise WarmupError(error.reason, code="request_failed") from error


@dataclass
class _Sent:
    """One request on its way; ``again``: on a connection that was used before."""

    again: bool = False


def session() -> aiohttp.ClientSession:
    """What reaches instances; it tells ``Client`` of each request whether its connection was used before."""
    trace = aiohttp.TraceConfig()
    trace.on_connection_reuseconn.append(_note_reuse)
    return aiohttp.ClientSession(trust_env=False, trace_configs=[trace])


async def _note_reuse(_: aiohttp.ClientSession, context: Any, __: aiohttp.TraceConnectionReuseconnParams) -> None:
    if isinstance(sent := context.trace_request_ctx, _Sent):
        sent.again = True


@dataclass(frozen=True)
class Client:
    """One instance and the session that reaches it. Every method raises RequestFailedError."""

    target: Target
    http: aiohttp.ClientSession
    generation_timeout_s: float = GENERATION_TIMEOUT_S

    async def send(self, probe: HttpProbe) -> str:
        """The body of the answer, which is what the probe expects."""
        body = await self._body(probe)
        if probe.expect_text is not None and probe.expect_text not in body:
            raise RequestFailedError(
                f"{_name(probe)}: the answer does not contain '{probe.expect_text}': {shorten(body, probe.headers)}",
                status=probe.expect_status,
            )
        return body

    async def run(self, probe: HttpProbe) -> str:
        """As ``send``; a completion must be one, since some programs say 200 when it failed."""
        body = await self.send(probe)
        generation = self.target.probes.generation
        completes = generation is not None and generation.kind == "completions"
        if generation is not None and completes and probe.path == _path(generation, stream=False):
            _parsed(probe, body, generation.wire)
        return body

    async def complete(self, prompt: str, max_tokens: int, *, token_ids: bool) -> sse.Piece:
        """A whole greedy completion, asked with the attempt's token; ``token_ids`` asks for them beside the text."""
        generation = self._generation()
        body = _completion_body(generation, prompt, max_tokens, stream=False)
        extra = {"return_token_ids": True} if token_ids and generation.wire == "openai" else {}
        probe = self._generation_probe({**body, **extra}, generation.headers)
        piece = _parsed(probe, await self._body(probe), generation.wire)
        # Older releases of Triton's back end give the prompt back before the answer.
        return replace(piece, text=piece.text.removeprefix(prompt)) if generation.wire == "triton" else piece

    async def embed(self, text: str, headers: Mapping[str, str]) -> tuple[float, ...]:
        """The embedding of ``text``."""
        generation = self._generation()
        probe = self._generation_probe(_with_model(generation, {"input": text}), headers)
        answer = await self._body(probe)
        try:
            return sse.read_embedding(answer)
        except ValueError as error:
            raise RequestFailedError(f"{_name(probe)}: {error}: {shorten(answer, headers)}") from error

    async def answer_ms(self, clock: Clock, length: int, seed: int, headers: Mapping[str, str]) -> float:
        """Milliseconds to the first content token, or to the whole answer where there are no tokens."""
        generation = self._generation()
        if generation.kind == "completions":
            return await self._first_token_ms(clock, length, seed, headers)
        started_s = clock.now()
        if generation.kind == "embeddings":
            await self.embed(prompts.prompt(length, seed), headers)
        elif generation.request is not None:
            await self.send(generation.request)
        return (clock.now() - started_s) * 1000

    async def _first_token_ms(self, clock: Clock, length: int, seed: int, headers: Mapping[str, str]) -> float:
        for attempt in range(MAX_EMPTY_ANSWERS):
            tokens = PROBE_TOKENS_AFTER_EMPTY if attempt else PROBE_TOKENS
            started_s = clock.now()
            times_s = await self.token_times_s(clock, prompts.prompt(length, seed + attempt), tokens, headers)
            if times_s:
                return (times_s[0] - started_s) * 1000
        path = self._generation().path
        raise RequestFailedError(f"POST {path}: {MAX_EMPTY_ANSWERS} answers in a row hold no text")

    async def token_times_s(
        self, clock: Clock, prompt: str, max_tokens: int, headers: Mapping[str, str]
    ) -> tuple[float, ...]:
        """The clock at each piece of text of a streamed answer, which is read to its end."""
        generation = self._generation()
        body = _completion_body(generation, prompt, max_tokens, stream=True)
        probe = self._generation_probe(body, headers, stream=True)
        async with self._exchange(probe) as response:
            return await _text_times_s(response, clock, probe, generation.wire)

    async def _body(self, probe: HttpProbe) -> str:
        async with self._exchange(probe) as response:
            return await _text(response, probe)

    @contextlib.asynccontextmanager
    async def _exchange(self, probe: HttpProbe) -> AsyncIterator[aiohttp.ClientResponse]:
        """An answer with the expected status."""
        try:
            async with await self._answered(probe) as response:
                if response.status != probe.expect_status:
                    raise _wrong_status(probe, response.status, response.reason, await _text(response, probe))
                yield response
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as error:
            raise _broken(probe, error) from error

    async def _answered(self, probe: HttpProbe) -> aiohttp.ClientResponse:
        """The answer's beginning. A server may close a connection whenever it is idle: then another one is used."""
        while True:
            sent = _Sent()
            try:
                return await self._sent(probe, sent)
            except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError, ConnectionResetError):
                if not sent.again:
                    raise

    async def _sent(self, probe: HttpProbe, sent: _Sent) -> aiohttp.ClientResponse:
        return await self.http.request(
            probe.method,
            self.target.base_url + probe.path,
            json=probe.body,
            headers=dict(probe.headers),
            timeout=aiohttp.ClientTimeout(total=probe.timeout_s),
            allow_redirects=False,
            trace_request_ctx=sent,
        )

    def _generation_probe(self, body: Any, headers: Mapping[str, str], *, stream: bool = False) -> HttpProbe:
        generation = self._generation()
        path = _path(generation, stream=stream)
        return HttpProbe(path, "POST", body, headers, timeout_s=self.generation_timeout_s)

    def _generation(self) -> Generation:
        if self.target.probes.generation is None:
            raise RequestFailedError("nothing says how this service is asked for an answer")
        return self.target.probes.generation


def shorten(text: str, headers: Mapping[str, str]) -> str:
    """The beginning of ``text`` on one line, with every header value taken out."""
    for value in filter(None, headers.values()):
        text = text.replace(value, "***")
    line = " ".join(text.split())
    return line if len(line) <= SHOWN_CHARS else line[:SHOWN_CHARS] + "…"


def quick(probe: HttpProbe, timeout_s: float) -> HttpProbe:
    """The probe with at most this time-out."""
    return replace(probe, timeout_s=min(probe.timeout_s, timeout_s))


async def _text_times_s(
    response: aiohttp.ClientResponse, clock: Clock, probe: HttpProbe, wire: str
) -> tuple[float, ...]:
    """The clock at each text; the answer is read to its end, so that the next request finds the server idle."""
    if response.content_type != "text/event-stream":
        piece = _parsed(probe, await _text(response, probe), wire)
        return (clock.now(),) if piece.text else ()
    times_s: list[float] = []
    finished = False
    async for piece in _pieces(response, probe, wire):
        if piece.text:
            times_s.append(clock.now())
        finished = finished or piece.finished
    if not finished:
        raise RequestFailedError(f"{_name(probe)}: the stream ended before the answer did")
    return tuple(times_s)


async def _pieces(response: aiohttp.ClientResponse, probe: HttpProbe, wire: str) -> AsyncIterator[sse.Piece]:
    buffer = b""
    async for chunk in _chunks(response, probe):
        events, buffer = sse.split_events(buffer + chunk)
        for event in events:
            yield _parsed(probe, event, wire)
        if len(buffer) > MAX_EVENT_BYTES:
            raise RequestFailedError(f"{_name(probe)}: an event of the stream is over {MAX_EVENT_BYTES} bytes")
    for event in sse.split_events(buffer + b"\n\n")[0]:  # some leave out the empty line behind the last one
        yield _parsed(probe, event, wire)


async def _chunks(response: aiohttp.ClientResponse, probe: HttpProbe) -> AsyncIterator[bytes]:
    """The body as it comes."""
    size = 0
    async for chunk in response.content.iter_any():
        size += len(chunk)
        if size > MAX_ANSWER_BYTES:
            raise RequestFailedError(f"{_name(probe)}: the answer is over {format_bytes(MAX_ANSWER_BYTES)}")
        yield chunk


def _path(generation: Generation, *, stream: bool) -> str:
    return generation.path if generation.wire == "openai" else triton.path(generation, stream=stream)


def _completion_body(generation: Generation, prompt: str, max_tokens: int, *, stream: bool) -> dict[str, Any]:
    """The JSON of one greedy completion (or chat completion, by path)."""
    if generation.wire != "openai":
        return triton.body(generation, prompt, max_tokens, stream=stream)
    chat = generation.path.endswith("/chat/completions")
    asked = {"messages": [{"role": "user", "content": prompt}]} if chat else {"prompt": prompt}
    return _with_model(generation, {**asked, "max_tokens": max_tokens, "temperature": 0, "stream": stream})


def _with_model(generation: Generation, body: dict[str, Any]) -> dict[str, Any]:
    return body if generation.model is None else {"model": generation.model, **body}


async def _text(response: aiohttp.ClientResponse, probe: HttpProbe) -> str:
    return b"".join([chunk async for chunk in _chunks(response, probe)]).decode("utf-8", "replace")


def _parsed(probe: HttpProbe, data: str, wire: str) -> sse.Piece:
    try:
        piece = sse.read_piece(data) if wire == "openai" else triton.read_piece(data)
    except ValueError as error:
        shown = shorten(data, probe.headers)
        raise RequestFailedError(f"{_name(probe)}: the answer is not a completion ({error}): {shown}") from error
    if piece.error is not None:
        raise RequestFailedError(f"{_name(probe)}: the server reports: {shorten(piece.error, probe.headers)}")
    return piece


def _wrong_status(probe: HttpProbe, status: int, reason: str | None, body: str) -> RequestFailedError:
    shown = shorten(body, probe.headers)
    said = " ".join(filter(None, (str(status), reason)))
    reason = f"{_name(probe)}: {said}" + (f": {shown}" if shown else "")
    return RequestFailedError(reason, not_yet=status in NOT_YET_STATUSES, status=status)


def _broken(probe: HttpProbe, error: Exception) -> RequestFailedError:
    if isinstance(error, asyncio.TimeoutError):
        return RequestFailedError(f"{_name(probe)}: no whole answer within {probe.timeout_s:g} s")
    if isinstance(error, aiohttp.ClientConnectorError):
        return RequestFailedError(f"{_name(probe)}: nothing listens yet", not_yet=True)
    if isinstance(error, aiohttp.ClientPayloadError):
        return RequestFailedError(f"{_name(probe)}: the answer broke off half-way")
    if isinstance(error, (aiohttp.ServerDisconnectedError, OSError)):
        return RequestFailedError(f"{_name(probe)}: the connection was closed without an answer", not_yet=True)
    if isinstance(error, aiohttp.ClientResponseError):
        return RequestFailedError(f"{_name(probe)}: what answers there is no HTTP")
    return RequestFailedError(f"{_name(probe)}: {type(error).__name__}")


def _name(probe: HttpProbe) -> str:
    return f"{probe.method} {probe.path}"
