"""Continuous batching: requests take slots of the engine between decode steps, and all slots decode together."""

from __future__ import annotations

import heapq
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

from toolkit.serve.sampling import Sampler, Sampling, Token, choose

if TYPE_CHECKING:
    from torch import Tensor

FinishReason = Literal["stop", "length", "error", "cancelled"]
log = logging.getLogger("coexist.serve")


class Engine(Protocol):
    """The compiled engine, as far as requests need it. Logits are float32."""

    @property
    def piece_tokens(self) -> int:
        """The most tokens that one call of ``prefill`` should be given; a longer prompt takes several."""

    def place(self, slot: int, token_ids: Sequence[int]) -> int:
        """How many of a prompt's first tokens the slot holds already; the slot is this prompt's from now on."""

    def prefill(self, slot: int, token_ids: Sequence[int], start: int) -> Tensor:
        """Logits [vocab] after these tokens of the prompt, which stand behind the ``start`` that the slot holds."""

    def decode(self, slots: Sequence[int], token_ids: Sequence[int]) -> Tensor:
        """Logits [n, vocab] after one more token in each slot."""

    def release(self, slot: int, *, keep: bool) -> None:
        """The slot is free afterwards; with ``keep`` later prompts may use what it held."""


class Listener(Protocol):
    """Who gets the tokens of one request; called in the inference thread."""

    def on_token(self, token: Token, *, end_token: bool) -> bool:
        """True when the text has met a stop string."""

    def on_finish(self, reason: FinishReason, message: str | None) -> None:
        """Called exactly once. ``message`` comes with ``error``."""


class Observer(Protocol):
    """Who counts; times in seconds."""

    def first_token(self, seconds: float, prompt_tokens: int) -> None:
        """A first token came, so long after its submission."""

    def next_token(self, seconds: float) -> None:
        """Another token came, so long after the one before it."""

    def finished(self, reason: FinishReason) -> None:
        """A request ended."""


class QueueFullError(Exception):
    """No more requests can wait."""


@dataclass(eq=False)
class Request:
    """One request on its way through the engine."""

    prompt_ids: tuple[int, ...]
    max_tokens: int
    sampling: Sampling
    listener: Listener
    ignore_eos: bool = False
    cancelled: bool = False
    slot: int = -1
    filled: int = 0
    last_id: int = -1
    generated: int = 0
    submitted_s: float = 0.0
    last_token_s: float = 0.0
    sampler: Sampler = field(init=False)

    def __post_init__(self) -> None:
        self.sampler = Sampler(self.sampling)


class Scheduler:
    """Owns the slots. ``submit`` is the event loop's, everything else the inference thread's."""

    def __init__(
        self,
        engine: Engine,
        max_queue: int,
        observer: Observer,
        *,
        slots: int,
        end_tokens: Iterable[int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._max_queue = max_queue
        self._observer = observer
        self._clock = clock
        self._eos = frozenset(end_tokens)
        self._slots = slots
        self._free = list(range(slots))
        self._waiting: deque[Request] = deque()
        self._active: list[Request] = []
        self._filling: Request | None = None

    @property
    def queued(self) -> int:
        """Requests that wait for a slot."""
        return len(self._waiting)

    @property
    def slots_in_use(self) -> int:
        """Slots that hold a request."""
        return len(self._active)

    @property
    def busy(self) -> bool:
        """True while slots are in use."""
        return bool(self._active)

    def submit(self, request: Request) -> None:
        """The request waits for a slot.

        Raises: QueueFullError when ``max_queue`` requests wait already.
        """
        if len(self._waiting) >= self._max_queue:
            raise QueueFullError
        request.submitted_s = self._clock()
        self._waiting.append(request)

    def cancel(self, request: Request) -> None:
        """The request leaves: its place in the queue at once, its slot before the next step. Late, nothing changes."""
        request.cancelled = True
        try:
            self._waiting.remove(request)
        except ValueError:
            return
        self._end(request, "cancelled")

    def delay_s(self) -> float | None:
        """0 when there is something to do, else None."""
        return 0 if self._waiting or self._active else None

    def step(self, admit: bool = True) -> None:
        """Prompts take free slots, then every slot in use decodes one token.

        While slots decode, one piece of one prompt runs per step, so that neither long prompts nor many stall them.
        """
        self._drop_cancelled()
        others_wait = bool(self._decoding())
        while self._advance(admit) and not others_wait:
            pass
        if self._decoding():
            self._decode()

    def _decoding(self) -> list[Request]:
        """Those with a whole prompt in their slot, by slot."""
        return sorted((one for one in self._active if one is not self._filling), key=lambda one: one.slot)

    def _drop_cancelled(self) -> None:
        for request in [s for s in self._active if s.cancelled]:
            self._leave(request, "cancelled")

    def _advance(self, admit: bool) -> bool:
        """Runs one piece of the prompt under way, or of the next one; False when there is none."""
        if self._filling is None and not (admit and self._admit()):
            return False
        request = self._filling
        if request is not None:
            self._prefill(request)
        return True

    def _admit(self) -> bool:
        """True when a request has left the queue, for a slot or because its client has gone."""
        if not (self._waiting and self._free):
            return False
        request = self._waiting.popleft()
        if request.cancelled:
            self._end(request, "cancelled")
            return True
        # The lowest slot: a decode step costs as much as the range of the slots in it.
        request.slot = heapq.heappop(self._free)
        self._active.append(request)
        self._filling = request
        return True

    def _prefill(self, request: Request) -> None:
        ids, slot = request.prompt_ids, request.slot
        try:
            start = request.filled or self._engine.place(slot, ids)
            request.filled = min(len(ids), start + self._engine.piece_tokens)
            logits = self._engine.prefill(slot, ids[start : request.filled], start)
            token = choose(logits[None], [request.sampler])[0] if request.filled == len(ids) else None
        except Exception as e:
            self._fail([request], e)
            return
        if request.filled < len(ids):
            return
        self._filling = None
        request.last_token_s = self._clock()
        self._observer.first_token(request.last_token_s - request.submitted_s, len(ids))
        self._deliver(request, token)

    def _decode(self) -> None:
        active = self._decoding()
        try:
            logits = self._engine.decode([s.slot for s in active], [s.last_id for s in active])
            tokens = choose(logits, [s.sampler for s in active])
        except Exception as e:
            self._fail(active, e)
            return
        now_s = self._clock()
        for request, token in zip(active, tokens, strict=True):
            self._observer.next_token(now_s - request.last_token_s)
            request.last_token_s = now_s
            self._deliver(request, token)

    def _deliver(self, request: Request, token: Token | None) -> None:
        if token is None:
            self._leave(request, "error", "the engine's logits are not finite")
            return
        request.last_id = token.id
        request.generated += 1
        end_token = token.id in self._eos and not request.ignore_eos
        if request.listener.on_token(token, end_token=end_token) or end_token:
            self._leave(request, "stop")
        elif request.generated >= request.max_tokens:
            self._leave(request, "length")

    def _fail(self, requests: Sequence[Request], error: Exception) -> None:
        log.error("the engine failed on %d requests", len(requests), exc_info=error)
        for request in requests:
            self._leave(request, "error", f"the engine failed: {error}")

    def _leave(self, request: Request, reason: FinishReason, message: str | None = None) -> None:
        self._active.remove(request)
        if self._filling is request:
            self._filling = None
        self._engine.release(request.slot, keep=reason != "error")
        heapq.heappush(self._free, request.slot)
        self._end(request, reason, message)

    def _end(self, request: Request, reason: FinishReason, message: str | None = None) -> None:
        self._observer.finished(reason)
        request.listener.on_finish(reason, message)
