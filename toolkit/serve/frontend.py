"""The built-in frontend server: embeddings and reranking by a BERT-family encoder, with dynamic batching."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiohttp import web

from toolkit.serve import arguments, compiles, embeddings, rerank
from toolkit.serve.api import ApiError, read_object
from toolkit.serve.batcher import Batcher, Limits, QueueFullError, Request, Tokens
from toolkit.serve.metrics import Metrics
from toolkit.serve.openapi import Operation
from toolkit.serve.sizes import padded, padded_sizes
from toolkit.serve.status import Status
from toolkit.serve.web import RETRY_AFTER, Ended, Handler, Server, WarmupMode, loaded
from toolkit.serve.web import main as web_main
from toolkit.serve.worker import Worker

if TYPE_CHECKING:
    import torch

    from toolkit.serve.scoring import Scorer
    from toolkit.serve.sentence import SentenceEncoder, SentenceTokenizer

ATTENTIONS = ("auto", "fa4", "fa3", "fa2", "sdpa", "vanilla", "eager")
DTYPES = ("auto", "float32", "float16", "bfloat16")
# Read on 2 cores: matrix products are as fast per token from 64 tokens on, so a larger batch is only a longer wait.
CPU_BATCH_TOKENS_PER_THREAD = 256
CUDA_BATCH_TOKENS = 65536
PROBE_TEXT = "Hello"
# So many characters are tokens in less time than it takes to hand them to a thread and back on a busy machine.
INLINE_CHARACTERS = 4096


class FrontendMetrics(Metrics):
    """Also counts batches and their texts and tokens."""

    def __init__(self, status: Status, attention: Callable[[], dict[str, str]]) -> None:
        super().__init__(status, compiles.count, attention)
        sizes = tuple(float(1 << n) for n in range(10))
        self._batch = self.histogram("coexist_server_batch_texts", "Texts in a batch.", sizes)
        self._seconds = self.histogram("coexist_server_batch_seconds", "Time of a batch.")
        self._tokens = self.counter("coexist_server_prompt_tokens", "Tokens embedded.")

    def batch(self, texts: int, tokens: int, seconds: float) -> None:
        """Counts one batch."""
        self._batch.observe(texts)
        self._seconds.observe(seconds)
        self._tokens.inc(tokens)


class FrontendBackend:
    """Tokenizer, encoder, scorer and batcher, once loaded; and the handlers that use them."""

    def __init__(self, model_name: str, asked_attention: str, status: Status) -> None:
        self._model_name = model_name
        self._asked = asked_attention
        self._encoder: SentenceEncoder | None = None
        self._embeddings_operation = embeddings.operation(None, None)
        self._notify: Callable[[], None] = lambda: None
        self.metrics = FrontendMetrics(status, self.attention)

    def ready(
        self,
        encoder: SentenceEncoder,
        tokenizer: SentenceTokenizer,
        scorer: Scorer,
        limits: Limits,
        notify: Callable[[], None],
    ) -> Batcher:
        """The batcher of a loaded encoder. ``notify`` wakes the inference thread."""
        self._encoder = encoder
        self._tokenizer = tokenizer
        self._scorer = scorer
        self._embeddings_operation = embeddings.operation(encoder.vocab_size, encoder.dimension)
        self._limits = limits
        self._notify = notify
        batcher = self._batcher = Batcher(encoder.embed, limits, self.metrics.batch)
        self.metrics.gauge("coexist_server_queue_length", "Texts waiting for a batch.", lambda: batcher.queued)
        return batcher

    @property
    def encoder(self) -> SentenceEncoder:
        """The encoder. Raises: ApiError 503 before it is loaded (the gate lets nobody ask then)."""
        if self._encoder is None:
            raise ApiError(503, "still loading", headers=RETRY_AFTER)
        return self._encoder

    def model(self) -> dict[str, Any]:
        """Limits, dimension and how documents are scored, once loaded."""
        if self._encoder is None:
            return {}
        sizes = {"max_model_len": self._tokenizer.max_length, "dimension": self._encoder.dimension}
        return {**sizes, "scoring": self._scorer.scoring}

    def attention(self) -> dict[str, str]:
        """What was asked, what ran, and which kernels torch dispatched for it."""
        if self._encoder is None:
            return {}
        path = self._encoder.attention
        used = {} if path.used is None else {"used": path.used}
        return {"asked": self._asked, **used, "kernels": " ".join(path.kernels)}

    def warmup_keys(self, mode: WarmupMode) -> list[str]:
        """Every number of tokens that a batch is padded to, as ``TEXTSxTOKENS``."""
        keys = token_buckets(self._limits, self._tokenizer.max_length)
        return keys if mode == "full" else keys[:1]

    def run_key(self, key: str) -> None:
        """Embeds as many texts of that length as the key says."""
        texts, _, tokens = key.partition("x")
        self.encoder.embed([Tokens((0,) * int(tokens))] * int(texts))

    def inference(self) -> Mapping[str, Handler]:
        """Embeddings as OpenAI has them, reranking as Cohere and Jina do."""
        return {embeddings.PATH: self._embeddings, rerank.PATH: self._rerank}

    def operations(self) -> Sequence[Operation]:
        """The description of both."""
        return self._embeddings_operation, rerank.OPERATION

    async def probe(self) -> None:
        """Returns after one text. Raises: ApiError."""
        await self._embed(self._tokenizer.encode([PROBE_TEXT]))

    async def _embeddings(self, request: web.Request) -> web.StreamResponse:
        encoder = self.encoder
        body = await read_object(request, self._embeddings_operation.body or {})
        ask = embeddings.parse(body, self._model_name, encoder.dimension)
        tokens = await self._tokenize(ask)
        truncated = embeddings.cut(tokens, "input", self._tokenizer.max_length, allowed=ask.truncate)
        rows = await self._embed(tokens)
        vectors = [embeddings.vector(row, ask, normalize=encoder.normalizes) for row in rows]
        answer = embeddings.answer(self._model_name, vectors, sum(map(len, tokens)), truncated)
        headers = embeddings.cut_headers(truncated)
        return web.Response(body=answer, content_type="application/json", headers=headers)

    async def _rerank(self, request: web.Request) -> web.StreamResponse:
        ask = rerank.parse(await read_object(request, rerank.BODY), self._model_name)
        scorer = self._scorer
        characters = len(ask.query) * len(ask.documents) + sum(map(len, ask.documents))
        tokens = await _encoded(characters, lambda: scorer.tokens(self._tokenizer, ask.query, ask.documents))
        truncated = self._cut(ask, tokens)
        rows = await self._embed(tokens)
        scores = await asyncio.to_thread(scorer.scores, rows)
        ranked = rerank.results(ask, scores.tolist())
        answer = rerank.answer(self._model_name, scorer.scoring, ranked, sum(map(len, tokens)), truncated)
        return web.json_response(answer, headers=embeddings.cut_headers(truncated))

    def _cut(self, ask: rerank.Ask, tokens: Sequence[Tokens]) -> list[int]:
        """The documents that were cut; all of them when the query was."""
        limit, count = self._tokenizer.max_length, len(ask.documents)
        queries, documents = tokens[:-count], tokens[-count:]
        if embeddings.cut(queries, "query", limit, allowed=ask.truncate):
            return list(range(count))
        return embeddings.cut(documents, "documents", limit, allowed=ask.truncate)

    async def _tokenize(self, ask: embeddings.Ask) -> list[Tokens]:
        if ask.ids:
            return [self._tokenizer.cut(ids) for ids in ask.ids]
        return await _encoded(sum(map(len, ask.texts)), lambda: self._tokenizer.encode(ask.texts))

    async def _embed(self, tokens: Sequence[Tokens]) -> list[torch.Tensor]:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()

        def on_done(error: Exception | None) -> None:
            # The loop is closed when the process leaves while requests are under way.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(_settle, done, error)

        request = Request(tokens, on_done)
        try:
            self._batcher.submit(request)
            self._notify()
            await done
        except QueueFullError:
            raise ApiError(429, "too many texts are waiting already", code="queue_full", headers=RETRY_AFTER) from None
        finally:
            request.cancelled = True
        return [request.vectors[index] for index in range(len(tokens))]


async def _encoded(characters: int, encode: Callable[[], list[Tokens]]) -> list[Tokens]:
    """What ``encode`` makes of so many characters; many do not keep the event loop."""
    if characters <= INLINE_CHARACTERS:
        return encode()
    return await asyncio.to_thread(encode)


def _settle(done: asyncio.Future[None], error: Exception | None) -> None:
    if done.done():
        return
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(ApiError(500, f"the encoder failed: {error}"))


def token_buckets(limits: Limits, max_length: int) -> list[str]:
    """Keys of one batch for each number of tokens that batches are padded to."""
    # One text may be longer than a batch of several is.
    most = padded(max(max_length, min(limits.max_batch_tokens, limits.max_batch * max_length)), sys.maxsize)
    return [_fewest_texts(tokens, max_length) for tokens in padded_sizes(most)]


def _fewest_texts(tokens: int, max_length: int) -> str:
    """The key of the fewest equal texts that are padded to exactly so many tokens; texts of one token always are."""
    lengths = ((texts, min(max_length, tokens // texts)) for texts in range(1, tokens + 1))
    return next(f"{texts}x{length}" for texts, length in lengths if padded(texts * length, sys.maxsize) == tokens)


def load(backend: FrontendBackend, options: Any, status: Status, notify: Callable[[], None]) -> Batcher:
    """The batcher over the model in ``options.model_dir``. Runs in the inference thread; times each part.

    Raises: ToolkitError.
    """
    start_s = time.monotonic()
    device = arguments.open_device(options.device, options.memory_fraction, options.memory_bytes)
    from toolkit.serve import scoring, sentence  # noqa: PLC0415 - imports torch

    status.part("context", time.monotonic() - start_s)
    config = sentence.read_sentence_config(options.model_dir)
    with status.timed("weights"):
        dtype = _dtype(options.dtype, device)
        weights = sentence.load_encoder(config, device, dtype, status.read)
    with status.timed("attention"):
        encoder = sentence.SentenceEncoder(weights, config, sentence.choose_attention(weights, options.attention))
    scorer = scoring.load_scorer(config, weights.config)
    with status.timed("tokenizer"):
        tokenizer = sentence.SentenceTokenizer.load(config, encoder.max_length)
    tokens = _batch_tokens(device)
    limits = Limits(options.max_batch, tokens, options.max_wait_ms / 1000, max_queue=options.max_queue)
    batcher = backend.ready(encoder, tokenizer, scorer, limits, notify)
    loaded(status)
    return batcher


def _dtype(asked: str, device: torch.device) -> torch.dtype:
    import torch  # noqa: PLC0415 - loaded by now

    if asked == "auto":
        asked = "float32" if device.type == "cpu" else "float16"
    dtype: torch.dtype = getattr(torch, asked)
    return dtype


def _batch_tokens(device: torch.device) -> int:
    import torch  # noqa: PLC0415 - loaded by now

    return CUDA_BATCH_TOKENS if device.type == "cuda" else CPU_BATCH_TOKENS_PER_THREAD * torch.get_num_threads()


def parse(argv: Sequence[str]) -> Any:
    """The options on the command line. Raises: SystemExit 2 with a usage message."""
    flags = arguments.parser("frontend")
    flags.add_argument("--model-dir", type=Path, required=True)
    flags.add_argument("--attention", choices=ATTENTIONS, default="auto")
    flags.add_argument("--dtype", choices=DTYPES, default="auto", help="auto: float32 on a CPU, float16 on a GPU")
    flags.add_argument("--max-batch", type=arguments.positive_int, default=32, help="texts in a batch")
    flags.add_argument("--max-wait-ms", type=arguments.non_negative_float, default=2.0)
    flags.add_argument("--max-queue", type=arguments.positive_int, default=4096, help="texts that wait")
    return flags.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    """The process's exit status: 0 after draining, 1 when a person must change something."""
    options = parse(argv)
    model_name = options.served_model_name or options.model_dir.resolve().name

    def make(status: Status, ended: Ended) -> tuple[Server, Worker]:
        backend = FrontendBackend(model_name, options.attention, status)
        worker = Worker(lambda: load(backend, options, status, worker.notify), ended.worker_ended)
        return Server(model_name, status, backend=backend, worker=worker, metrics=backend.metrics), worker

    return web_main(options.host, options.port, make)
