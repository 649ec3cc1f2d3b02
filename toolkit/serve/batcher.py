"""Dynamic batching of texts: what waits goes together, within a bound on texts, tokens and time."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

log = logging.getLogger("coexist.serve")


class QueueFullError(Exception):
    """No more texts can wait."""


@dataclass(frozen=True)
class Limits:
    """Of one batch, and of the queue. ``max_wait_s`` is spent only while several clients are about."""

    max_batch: int
    max_batch_tokens: int
    max_wait_s: float
    max_queue: int


@dataclass(frozen=True)
class Tokens:
    """One text or one pair as ids; ``truncated`` when it was longer than the model takes.

    ``second`` is where the second text of a pair begins, for models that mark it.
    """

    ids: tuple[int, ...]
    truncated: bool = False
    second: int | None = None

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(eq=False)
class Request:
    """Texts of one client, as tokens. ``on_done`` is called once, in the inference thread."""

    texts: Sequence[Tokens]
    on_done: Callable[[Exception | None], None]
    cancelled: bool = False
    vectors: dict[int, Tensor] = field(default_factory=dict)
    failed: bool = False


@dataclass(frozen=True)
class _Text:
    request: Request
    index: int
    tokens: Tokens
    arrived_s: float


class Batcher:
    """``submit`` is the event loop's, everything else the inference thread's."""

    def __init__(
        self,
        embed: Callable[[Sequence[Tokens]], Tensor],
        limits: Limits,
        on_batch: Callable[[int, int, float], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._embed = embed
        self._limits = limits
        self._on_batch = on_batch
        self._clock = clock
        self._queue: deque[_Text] = deque()
        self._company = False

    @property
    def queued(self) -> int:
        """Texts that wait."""
        return len(self._queue)

    @property
    def busy(self) -> bool:
        """False: between two batches nothing is under way."""
        return False

    def submit(self, request: Request) -> None:
        """The texts wait for a batch. A request that is larger than the queue may wait alone.

        Raises: QueueFullError.
        """
        if self._queue and len(self._queue) + len(request.texts) > self._limits.max_queue:
            raise QueueFullError
        now_s = self._clock()
        self._queue.extend(_Text(request, index, tokens, now_s) for index, tokens in enumerate(request.texts))

    def delay_s(self) -> float | None:
        """Seconds until the next batch should start; None: nothing waits.

        One client alone never waits; after a batch of several clients the next one may fill up a little.
        """
        if not self._queue:
            return None
        if not self._company or len(self._queue) >= self._limits.max_batch:
            return 0
        return max(0.0, self._queue[0].arrived_s + self._limits.max_wait_s - self._clock())

    def step(self, admit: bool = True) -> None:
        """Runs one batch."""
        batch = self._take()
        if not batch:
            return
        self._company = any(text.request is not batch[0].request for text in batch)
        start_s = self._clock()
        try:
            vectors = self._embed([text.tokens for text in batch])
        except Exception as e:
            log.error("the encoder failed on %d texts", len(batch), exc_info=e)
            self._fail(batch, e)
            return
        self._on_batch(len(batch), sum(len(text.tokens) for text in batch), self._clock() - start_s)
        for text, vector in zip(batch, vectors, strict=True):
            self._deliver(text, vector)

    def _take(self) -> list[_Text]:
        batch: list[_Text] = []
        tokens = 0
        while self._queue and len(batch) < self._limits.max_batch:
            text = self._queue[0]
            if not (text.request.cancelled or text.request.failed):
                tokens += len(text.tokens)
                if batch and tokens > self._limits.max_batch_tokens:
                    break
                batch.append(text)
            self._queue.popleft()
        return batch

    def _deliver(self, text: _Text, vector: Tensor) -> None:
        request = text.request
        request.vectors[text.index] = vector
        if len(request.vectors) == len(request.texts):
            request.on_done(None)

    def _fail(self, batch: Sequence[_Text], error: Exception) -> None:
        for request in {text.request for text in batch}:
            request.failed = True
            request.on_done(error)
