"""A bounded load on one service: so many requests at a time, for so long, each token (or answer) with its time."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import aiohttp

from toolkit.runtimes.base import Generation
from toolkit.runtimes.builtin import TOKEN_HEADER
from toolkit.warm import Clock, Target, prompts
from toolkit.warm.client import Client, RequestFailedError

CONCURRENCY = 4
TOKENS = 32
PAUSE_S = 0.05
ANSWER_S = 60.0  # who has not answered then is not waited for: the bench stops by itself
# Far above the seeds of any proof and first request: no prompt comes twice in one boot.
FIRST_SEED = 1 << 40
CLIENT_SEEDS = 1 << 20


@dataclass(frozen=True)
class Load:
    """What came back in ``seconds``: when each token (or answer) did, ascending; ``failed`` requests.

    ``refused``: those that a server that is full turned away (HTTP 429).
    """

    unit: str
    seconds: float
    arrivals_s: tuple[float, ...]
    failed: int
    refused: int


async def run(
    target: Target, http: aiohttp.ClientSession, clock: Clock, seconds: float, concurrency: int = CONCURRENCY
) -> Load | None:
    """``concurrency`` clients ask one request after another until the time is over; None: nothing says what to ask."""
    generation = target.probes.generation
    if generation is None:
        return None
    asker = _Asker(Client(target, http, ANSWER_S), generation, clock, clock.now(), seconds)
    await asyncio.gather(*(asker.ask(number) for number in range(concurrency)))
    unit = "tokens" if generation.kind == "completions" else "answers"
    return Load(unit, seconds, tuple(sorted(asker.arrivals_s)), asker.failed, asker.refused)


@dataclass
class _Asker:
    client: Client
    generation: Generation
    clock: Clock
    began_s: float
    seconds: float
    arrivals_s: list[float] = field(default_factory=list)
    failed: int = 0
    refused: int = 0

    async def ask(self, number: int) -> None:
        seed = FIRST_SEED + number * CLIENT_SEEDS
        while self.clock.now() - self.began_s < self.seconds:
            seed += 1
            try:
                times_s = await self._one(seed)
            except RequestFailedError as error:
                self.refused += error.busy
                self.failed += not error.busy
                await self.clock.sleep(PAUSE_S)
            else:
                self.arrivals_s.extend(at_s - self.began_s for at_s in times_s)

    async def _one(self, seed: int) -> tuple[float, ...]:
        headers = {name: value for name, value in self.generation.headers.items() if name != TOKEN_HEADER}
        length = prompts.unseen_length(self.generation.max_input_tokens)
        if self.generation.kind == "completions":
            return await self.client.token_times_s(self.clock, prompts.prompt(length, seed), TOKENS, headers)
        await self.client.answer_ms(self.clock, length, seed, headers)
        return (self.clock.now(),)
