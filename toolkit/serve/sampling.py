"""The next token out of logits: greedy, or drawn with temperature, top-p and a seed; log-probabilities on demand."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy
    from torch import Tensor

# Below this, dividing by the temperature leaves float32; the limit of the distribution is the greedy choice.
MIN_TEMPERATURE = 1e-5
# Where top-p is met inside the most likely ids, they alone are sorted: read on 2 cores at 49k ids, 0.2 ms against 8 ms.
FEW = 256
# JSON has no minus infinity.
LOWEST_LOGPROB = -9999.0


@dataclass(frozen=True)
class Sampling:
    """How one request draws its tokens. ``logprobs`` None: none wanted; n: also those of the n likeliest ids."""

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    logprobs: int | None = None


@dataclass(frozen=True)
class Token:
    """One chosen id; ``logprob`` and ``top`` (id and log-probability, likeliest first) where asked for."""

    id: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


class Sampler:
    """Draws the tokens of one request; with a seed, the same logits give the same tokens in every process."""

    def __init__(self, sampling: Sampling) -> None:
        self.sampling = sampling

    @property
    def greedy(self) -> bool:
        """True when the likeliest id is taken."""
        return self.sampling.temperature < MIN_TEMPERATURE

    def draw(self, logits: Tensor) -> int:
        """An id drawn from one row of logits.

        Every id has a random time of its own, and the largest weight per time wins. Logits differ a little with what
        else is in the batch; here that rarely changes the winner, where a point on the summed weights would move.
        """
        probabilities = (logits.float().cpu() / self.sampling.temperature).softmax(dim=-1)
        weights, ids = nucleus(probabilities, self.sampling.top_p)
        times = self._random.standard_exponential(len(probabilities))
        index = int((weights.numpy() / (times if ids is None else times[ids.numpy()])).argmax())
        return index if ids is None else int(ids[index])

    @functools.cached_property
    def _random(self) -> numpy.random.Generator:
        import numpy  # noqa: PLC0415 - torch has loaded it by now

        seed = self.sampling.seed
        return numpy.random.Generator(numpy.random.SFC64(None if seed is None else seed % 2**64))


def nucleus(probabilities: Tensor, top_p: float) -> tuple[Tensor, Tensor | None]:
    """The smallest set of likeliest ids whose probabilities reach ``top_p``: weights and ids (None: all, in order)."""
    if top_p >= 1.0:
        return probabilities, None
    values, ids = probabilities.topk(min(FEW, probabilities.numel()))
    if float(values.sum()) < top_p:
        values, ids = probabilities.sort(descending=True)
    before = values.double().cumsum(-1) - values.double()
    count = max(1, int((before < top_p).sum()))
    return values[:count], ids[:count]


def choose(logits: Tensor, samplers: Sequence[Sampler]) -> list[Token | None]:
    """The next token of each row of logits [n, vocab]; None where the row holds no finite maximum."""
    best_values, best_ids = logits.max(dim=-1)
    finite = best_values.isfinite().tolist()
    greedy_ids = best_ids.tolist()
    return [
        _token(logits[row], sampler, greedy_ids[row]) if finite[row] else None for row, sampler in enumerate(samplers)
    ]


def _token(logits: Tensor, sampler: Sampler, greedy_id: int) -> Token:
    token_id = greedy_id if sampler.greedy else sampler.draw(logits)
    count = sampler.sampling.logprobs
    if count is None:
        return Token(token_id)
    logprobs = logits.float().cpu().log_softmax(dim=-1)  # kernels of a GPU load at first use: 70 ms
    values, ids = logprobs.topk(min(count, logprobs.numel()))
    top = tuple((i, max(value, LOWEST_LOGPROB)) for i, value in zip(ids.tolist(), values.tolist(), strict=True))
    return Token(token_id, max(float(logprobs[token_id]), LOWEST_LOGPROB), top)
