"""The built-in engine server: OpenAI completions over a compiled engine, with continuous batching."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, get_args

from aiohttp import web
from prometheus_client import Counter

from toolkit.serve import arguments, compiles
from toolkit.serve import completion_schemas as described
from toolkit.serve.api import ApiError, read_object
from toolkit.serve.completions import (
    Ask,
    ChatShape,
    CompletionShape,
    Shape,
    ShapeClass,
    Usage,
    parse_chat,
    parse_completion,
)
from toolkit.serve.generation import Generation, Piece
from toolkit.serve.metrics import Metrics
from toolkit.serve.model_files import read_json_if_there
from toolkit.serve.openapi import Operation
from toolkit.serve.prefix import BlockEngine, PrefixCache
from toolkit.serve.sampling import Sampling, Token
from toolkit.serve.scheduler import FinishReason, QueueFullError, Request, Scheduler
from toolkit.serve.status import Status
from toolkit.serve.tokenizer import TextTokenizer
from toolkit.serve.web import RETRY_AFTER, Ended, Handler, Server, WarmupMode, loaded
from toolkit.serve.web import main as web_main
from toolkit.serve.worker import Worker

PROBE_PROMPT = "Hello"
CHAT_KEY = "chat_template"


class LoadedEngine(BlockEngine, Protocol):
    """The compiled engine, as far as the server needs it."""

    max_batch_size: int
    eos_token_ids: Sequence[int]
    max_input_len: int
    max_seq_len: int
    vocab_size: int
    bytes_read: int
    info: Mapping[str, Any]

    @property
    def eager_steps(self) -> Mapping[str, int]:
        """Decode steps that no captured graph could take, by reason."""

    def shapes(self, mode: WarmupMode) -> list[str]:
        """Names of the shapes to warm."""

    def run_shape(self, key: str) -> None:
        """Runs one shape."""


Loader = Callable[[Path, str, Callable[[str, float], None]], LoadedEngine]


class EngineMetrics(Metrics):
    """Also counts tokens and times them; the scheduler's observer."""

    def __init__(self, status: Status, attention: Callable[[], dict[str, str]]) -> None:
        super().__init__(status, compiles.count, attention)
        self._first = self.histogram("coexist_server_first_token_seconds", "From arrival to the first token.")
        self._next = self.histogram("coexist_server_time_per_token_seconds", "Between two tokens of one request.")
        self._prompt_tokens = self.counter("coexist_server_prompt_tokens", "Prompt tokens processed.")
        self._generated_tokens = self.counter("coexist_server_generated_tokens", "Tokens generated.")
        self.rejected = self.counter("coexist_server_rejected", "Requests refused because the queue was full.")
        self._finished = Counter(
            "coexist_server_finished", "Requests that ended, by how.", ["reason"], registry=self.registry
        )
        for reason in get_args(FinishReason):
            self._finished.labels(reason)

    def first_token(self, seconds: float, prompt_tokens: int) -> None:
        """Counts a prompt and its first token."""
        self._first.observe(seconds)
        self._prompt_tokens.inc(prompt_tokens)
        self._generated_tokens.inc()

    def next_token(self, seconds: float) -> None:
        """Counts a token behind another."""
        self._next.observe(seconds)
        self._generated_tokens.inc()

    def finished(self, reason: FinishReason) -> None:
        """Counts an end."""
        self._finished.labels(reason).inc()

    def watch(self, scheduler: Scheduler, cache: PrefixCache, engine: LoadedEngine) -> None:
        """Queue, slots and blocks are read whenever the page is."""
        self.gauge("coexist_server_queue_length", "Requests waiting for a slot.", lambda: scheduler.queued)
        self.gauge("coexist_server_slots_in_use", "Slots in use.", lambda: scheduler.slots_in_use)
        self.gauge("coexist_server_slots", "Slots of the engine.", lambda: engine.max_batch_size)
        self.gauge("coexist_server_kv_blocks_in_use", "Blocks of the KV cache in use.", lambda: cache.blocks_in_use)
        self.gauge("coexist_server_kv_blocks", "Blocks of the KV cache.", lambda: cache.blocks)
        self.gauge("coexist_server_kv_blocks_stored", "Blocks that hold a prefix.", lambda: cache.stored)
        self.read_counter("coexist_server_prefix_hit_tokens", "Prompt tokens not computed.", lambda: cache.hit_tokens)
        self.read_counts("coexist_server_eager_steps", "Steps no captured graph took.", lambda: engine.eager_steps)


class EngineBackend:
    """The engine, its tokenizer and its scheduler, once loaded; and the handlers that use them."""

    def __init__(self, model_name: str, max_queue: int, status: Status) -> None:
        self._model_name = model_name
        self._max_queue = max_queue
        self._status = status
        self.metrics = EngineMetrics(status, self.attention)
        self._engine: LoadedEngine | None = None
        self._completions_operation = described.completions(None)
        self._chat_operation = described.chat()
        self._notify: Callable[[], None] = lambda: None

    def ready(self, engine: LoadedEngine, tokenizer: TextTokenizer, notify: Callable[[], None]) -> Scheduler:
        """The scheduler of a loaded engine. ``notify`` wakes the inference thread."""
        self._engine = engine
        self._completions_operation = described.completions(engine.vocab_size)
        self._tokenizer = tokenizer
        cache = PrefixCache(engine)
        self._scheduler = Scheduler(
            cache, self._max_queue, self.metrics, slots=engine.max_batch_size, end_tokens=engine.eos_token_ids
        )
        self._notify = notify
        self.metrics.watch(self._scheduler, cache, engine)
        return self._scheduler

    @property
    def engine(self) -> LoadedEngine:
        """The engine. Raises: ApiError 503 before it is loaded (the gate lets nobody ask then)."""
        if self._engine is None:
            raise ApiError(503, "still loading", headers=RETRY_AFTER)
        return self._engine

    def model(self) -> dict[str, Any]:
        """The limits of the engine, once it is loaded."""
        if self._engine is None:
            return {}
        return {"max_model_len": self._engine.max_seq_len, "max_input_len": self._engine.max_input_len}

    def attention(self) -> dict[str, str]:
        """Whether the engine's packages hold fused attention, which its build has read from them."""
        fmha = None if self._engine is None else self._engine.info.get("fmha")
        used = {"enable": "fused", "disable": "unfused"}.get(str(fmha))
        return {} if used is None else {"used": used}

    def warmup_keys(self, mode: WarmupMode) -> list[str]:
        """The engine's shapes; in full also the chat template, whose first use compiles it."""
        shapes = self.engine.shapes(mode)
        return [*shapes, CHAT_KEY] if mode == "full" and self._tokenizer.has_chat_template else shapes

    def run_key(self, key: str) -> None:
        """Runs one shape of the engine, or writes a chat."""
        if key == CHAT_KEY:
            self._tokenizer.warm_chat()
        else:
            self.engine.run_shape(key)

    def inference(self) -> Mapping[str, Handler]:
        """The OpenAI routes."""
        return {described.COMPLETIONS_PATH: self._completions, described.CHAT_PATH: self._chat}

    def operations(self) -> Sequence[Operation]:
        """The description of both."""
        return self._completions_operation, self._chat_operation

    async def probe(self) -> None:
        """Returns after one token. Raises: ApiError."""
        ask = Ask(max_tokens=1, sampling=Sampling())
        ids = self._tokenizer.encode(PROBE_PROMPT)
        await self._whole(ask, CompletionShape(self._model_name, self._tokenizer, ask, ids, Usage(len(ids))))

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        body = await read_object(request, self._completions_operation.body or {})
        ask, prompt = parse_completion(body, self._model_name)
        ids = await asyncio.to_thread(self._tokenizer.encode, prompt) if isinstance(prompt, str) else prompt
        return await self._answer(request, ask, ids, CompletionShape)

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        ask, messages = parse_chat(await read_object(request, self._chat_operation.body or {}), self._model_name)
        try:
            ids = await asyncio.to_thread(self._tokenizer.chat, messages)
        except ValueError as e:
            raise ApiError(400, str(e), "messages") from e
        return await self._answer(request, ask, ids, ChatShape)

    async def _answer(self, request: web.Request, ask: Ask, ids: Any, shape_class: ShapeClass) -> web.StreamResponse:
        shape = shape_class(self._model_name, self._tokenizer, ask, ids, Usage(len(ids)))
        if ask.stream:
            return await self._stream(request, ask, shape)
        return web.json_response(await self._whole(ask, shape))

    def _submit(self, ask: Ask, ids: Sequence[int]) -> tuple[Request, Generation]:
        max_tokens = allowed_tokens(len(ids), ask.max_tokens, self.engine.max_input_len, self.engine.max_seq_len)
        generation = Generation(self._tokenizer.decode, ask.stops)
        request = Request(tuple(ids), max_tokens, ask.sampling, generation, ask.ignore_eos)
        try:
            self._scheduler.submit(request)
        except QueueFullError:
            self.metrics.rejected.inc()
            message = f"{self._max_queue} requests are waiting already; try again later"
            raise ApiError(429, message, code="queue_full", headers=RETRY_AFTER) from None
        self._notify()
        return request, generation

    async def _whole(self, ask: Ask, shape: Shape) -> dict[str, Any]:
        request, generation = self._submit(ask, shape.prompt_ids)
        texts: list[str] = []
        tokens: list[Token] = []
        try:
            async for piece in generation.pieces():
                texts.append(piece.text)
                tokens.extend(piece.tokens)
        finally:
            self._drop(request)
        _check(piece)
        shape.usage.completion_tokens = len(tokens)
        return shape.whole("".join(texts), tokens, str(piece.finish))

    async def _stream(self, http: web.Request, ask: Ask, shape: Shape) -> web.StreamResponse:
        request, generation = self._submit(ask, shape.prompt_ids)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
        try:
            async for piece in generation.pieces():
                if not response.prepared:
                    _check(piece)
                    await response.prepare(http)
                    await _send(response, *shape.opening())
                shape.usage.completion_tokens += len(piece.tokens)
                await self._send_piece(response, shape, piece)
        finally:
            self._drop(request)
        await response.write_eof()
        return response

    async def _send_piece(self, response: web.StreamResponse, shape: Shape, piece: Piece) -> None:
        if piece.finish == "error":
            await _send(response, ApiError(500, piece.message or "the engine failed").document())
        elif shape.shows(piece):
            await _send(response, shape.chunk(piece))
        if piece.finish is not None:
            await _send(response, *shape.closing())
            await response.write(b"data: [DONE]\n\n")

    def _drop(self, request: Request) -> None:
        # After the last piece this changes nothing; before it, the client has gone and the slot is wanted back.
        self._scheduler.cancel(request)
        self._notify()


def allowed_tokens(prompt_tokens: int, asked: int | None, max_input_len: int, max_seq_len: int) -> int:
    """How many tokens may be generated after this prompt. ``asked`` None: up to the limit.

    Raises: ApiError 400 when the prompt, or prompt and answer together, are over the engine's limits.
    """
    if prompt_tokens == 0:
        raise ApiError(400, "the prompt is empty", "prompt")
    if prompt_tokens > max_input_len:
        message = f"the prompt has {prompt_tokens} tokens; this engine's limit is max_input_len {max_input_len}"
        raise ApiError(400, message, "prompt", "context_length_exceeded")
    room = max_seq_len - prompt_tokens
    if room < 1 or (asked is not None and asked > room):
        message = (
            f"{prompt_tokens} prompt tokens and {asked or 1} new ones are over this engine's limit, "
            f"max_seq_len {max_seq_len}"
        )
        raise ApiError(400, message, "max_tokens", "context_length_exceeded")
    return room if asked is None else asked


def _check(piece: Piece) -> None:
    if piece.finish == "error":
        raise ApiError(500, piece.message or "the engine failed")


async def _send(response: web.StreamResponse, *documents: Mapping[str, Any]) -> None:
    for document in documents:
        await response.write(f"data: {json.dumps(document)}\n\n".encode())


def load(backend: EngineBackend, options: Any, status: Status, loader: Loader, notify: Callable[[], None]) -> Scheduler:
    """The scheduler of the engine in ``options.engine_dir``. Runs in the inference thread; times each part.

    Raises: ToolkitError.
    """
    start_s = time.monotonic()
    asked = options.device
    if asked == "auto":
        # An engine is compiled for one kind of device.
        asked = read_json_if_there(options.engine_dir / "engine.json").get("device", asked)
    device = arguments.open_device(asked, options.memory_fraction, options.memory_bytes)
    status.part("context", time.monotonic() - start_s)
    engine = loader(options.engine_dir, device.type, status.part)
    status.read(engine.bytes_read)
    with status.timed("tokenizer"):
        tokenizer = TextTokenizer.load(options.engine_dir)
    scheduler = backend.ready(engine, tokenizer, notify)
    loaded(status)
    return scheduler


def _compiled_engine(engine_dir: Path, device: str, on_part: Callable[[str, float], None]) -> LoadedEngine:
    from toolkit.serve.compiled import CompiledEngine  # noqa: PLC0415 - imports torch

    engine: LoadedEngine = CompiledEngine.load(engine_dir, device, on_part)
    return engine


def parse(argv: Sequence[str]) -> Any:
    """The options on the command line. Raises: SystemExit 2 with a usage message."""
    flags = arguments.parser("engine")
    flags.add_argument("--engine-dir", type=Path, required=True)
    flags.add_argument("--max-queue", type=arguments.positive_int, default=128)
    return flags.parse_args(argv)


def main(argv: Sequence[str], loader: Loader = _compiled_engine) -> int:
    """The process's exit status: 0 after draining, 1 when a person must change something."""
    options = parse(argv)
    model_name = options.served_model_name or options.engine_dir.resolve().name

    def make(status: Status, ended: Ended) -> tuple[Server, Worker]:
        backend = EngineBackend(model_name, options.max_queue, status)
        worker = Worker(lambda: load(backend, options, status, loader, worker.notify), ended.worker_ended)
        return Server(model_name, status, backend=backend, worker=worker, metrics=backend.metrics), worker

    return web_main(options.host, options.port, make)
