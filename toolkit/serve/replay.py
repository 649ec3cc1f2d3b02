"""Decode steps on a GPU as CUDA graphs: captured once for each size, then replayed with new tokens.

Sizes are buckets of rows (1, 2, 4, …) and of keys, padded up, so that a step of any size is one that has run before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

LEAST_KEYS, KEYS_FACTOR = 256, 4
# A pool is given back after so many rounds in a row that did without its largest graphs.
PATIENCE = 3
WARM_RUNS = 2

Run = Callable[[Tensor, Tensor, int], Tensor]


def row_buckets(most: int) -> list[int]:
    """1, 2, 4, … and ``most``."""
    return [*(1 << n for n in range(most.bit_length()) if 1 << n < most), most]


def key_buckets(most: int) -> list[int]:
    """256, 1024, 4096, … and ``most``."""
    sizes, size = [], LEAST_KEYS
    while size < most:
        sizes.append(size)
        size *= KEYS_FACTOR
    return [*sizes, most]


def bucket_of(size: int, buckets: Sequence[int]) -> int | None:
    """The smallest bucket that holds ``size``; None when none does."""
    return next((bucket for bucket in buckets if bucket >= size), None)


class Rounds:
    """Whether the largest graphs are still worth their memory. A round lasts from an idle engine to the next. Pure."""

    def __init__(self) -> None:
        self.needed: list[int] = []

    def over(self, peak: int, held: int) -> int:
        """The rows to hold from now on: what was needed lately, once ``PATIENCE`` rounds in a row did with less."""
        if peak >= held:
            self.needed.clear()
            return peak
        self.needed.append(peak)
        if len(self.needed) < PATIENCE:
            return held
        most = max(self.needed)
        self.needed.clear()
        return most


class Captured(Protocol):
    """One graph: what it computes is in ``logits`` after ``replay``."""

    inputs: Tensor
    logits: Tensor

    def replay(self) -> None: ...


@dataclass
class CudaGraph:
    """A captured step; ``inputs`` int64 [2, rows] are tokens and positions."""

    inputs: Tensor
    logits: Tensor
    graph: torch.cuda.CUDAGraph

    def replay(self) -> None:
        """Starts it on the current stream."""
        self.graph.replay()


class GraphPool:
    """Captures graphs that share memory; ``renew`` gives all of it back once none of them is kept."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.renew()

    def renew(self) -> None:
        """The next capture begins a new pool."""
        self._pool = torch.cuda.graph_pool_handle()
        torch.cuda.empty_cache()

    def capture(self, run: Run, rows: int, keys: int) -> CudaGraph:
        """The step of that size."""
        # The compiled step wants what it reads to begin at multiples of 16 bytes, or copies it.
        inputs = torch.zeros(2, rows + rows % 2, dtype=torch.int64, device=self._device)[:, :rows]
        stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):
            for _ in range(WARM_RUNS):
                run(inputs[0], inputs[1], keys)
        torch.cuda.current_stream(self._device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            logits = run(inputs[0], inputs[1], keys)
        return CudaGraph(inputs, logits, graph)


class Pool(Protocol):
    """What ``Replays`` captures with: ``GraphPool`` on a GPU."""

    def capture(self, run: Run, rows: int, keys: int) -> Captured: ...
    def renew(self) -> None: ...


class Replays:
    """The graphs of one engine. ``cache`` is what they read and write: where it lies is part of them.

    ``eager`` counts, by reason, the steps that no graph could take.
    """

    def __init__(self, run: Run, pool: Pool, cache: Tensor, most_rows: int, most_keys: int) -> None:
        self._run, self._pool = run, pool
        self._rows, self._keys = row_buckets(most_rows), key_buckets(most_keys)
        self._known_as = _identity(cache)
        self._graphs: dict[tuple[int, int], Captured] = {}
        self._rounds = Rounds()
        self._peak = self._held = 0
        self._missed: set[int] = set()
        self.eager: Counter[str] = Counter()

    @property
    def buckets(self) -> list[int]:
        """The sizes of batches to capture before READY."""
        return list(self._rows)

    def capture(self, rows: int) -> None:
        """Captures a batch size at every bucket of keys; once is enough."""
        for keys in self._keys:
            if (rows, keys) not in self._graphs:
                self._graphs[rows, keys] = self._pool.capture(self._run, rows, keys)
        self._held = max(self._held, rows)

    def step(self, tokens: Sequence[int], positions: Sequence[int], span: int, cache: Tensor) -> Tensor | None:
        """Logits [n, vocab] of one more token in each of the first n slots; None: no graph can, run it eagerly.

        ``span``: how many keys the longest of them looks at.
        """
        count, keys = len(tokens), bucket_of(span, self._keys)
        rows = bucket_of(count, self._rows)
        self._peak = max(self._peak, rows or count)
        graph = self._graphs.get((rows or 0, keys or 0))
        if graph is None or _identity(cache) != self._known_as:
            reason = self._reason(rows, keys, cache)
            self.eager[reason] += 1
            self._missed |= {rows or 0} if reason == "given_back" else set()
            return None
        spare = [0] * (graph.inputs.shape[1] - count)
        graph.inputs.copy_(torch.tensor([[*tokens, *spare], [*positions, *spare]]))
        graph.replay()
        return graph.logits[:count].clone()

    def _reason(self, rows: int | None, keys: int | None, cache: Tensor) -> str:
        if rows is None or keys is None:
            return "shape"
        names = ("address", "dtype", "shape")
        changed = (name for name, now, then in zip(names, _identity(cache), self._known_as, strict=True) if now != then)
        return next(changed, "given_back" if self._graphs else "not_captured")

    def between_requests(self, *, idle: bool) -> None:
        """What was given back and is needed again is captured; ``idle`` ends a round, and may give others back."""
        for rows in sorted(self._missed):
            self.capture(rows)
        self._missed.clear()
        if idle and self._peak and self._graphs:
            peak, self._peak = self._peak, 0
            self._hold(self._rounds.over(peak, self._held))

    def _hold(self, most: int) -> None:
        if most >= self._held:
            return
        self._graphs.clear()
        self._pool.renew()
        self._held = 0
        for rows in self._rows:
            if rows <= most:
                self.capture(rows)


def _identity(cache: Tensor) -> tuple[int, torch.dtype, torch.Size]:
    return cache.data_ptr(), cache.dtype, cache.shape
