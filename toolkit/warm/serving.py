"""The two ends of SERVING: registered and asked for the first time, and drained."""

from __future__ import annotations

from dataclasses import replace

import aiohttp

from toolkit.runtimes.builtin import TOKEN_HEADER
from toolkit.warm import prompts
from toolkit.warm.client import MAX_EMPTY_ANSWERS, Client, or_fail
from toolkit.warm.model import Clock, FirstRequest, Proof, Target
from toolkit.warm.steady import percentile

STEADY_REQUESTS = 10
# Before each request, the first one too: waking two idle processes takes 1 ms, a third of a small model's first token.
QUIET_S = 0.02
# Far above the seeds of any proof: no prompt comes twice.
FIRST_SEED = 1 << 32


async def register(target: Target, http: aiohttp.ClientSession) -> None:
    """Returns once the instance answers everybody; nothing to do for a program that always does.

    Raises: WarmupError ``request_failed``.
    """
    if target.probes.register is not None:
        await or_fail(Client(target, http).send(target.probes.register))


async def first_request(target: Target, http: aiohttp.ClientSession, proof: Proof, clock: Clock) -> FirstRequest:
    """How long the first ordinary request takes, then steady ones of its length, each after the same short quiet.

    Its prompt and length were not used before; it carries no token, as anybody's.

    Raises: WarmupError ``request_failed``.
    """
    generation = target.probes.generation
    if generation is None:
        return FirstRequest(None, None, None)
    client, length = Client(target, http), prompts.unseen_length(generation.max_input_tokens)
    headers = {name: value for name, value in generation.headers.items() if name != TOKEN_HEADER}
    seeds = [FIRST_SEED + count * MAX_EMPTY_ANSWERS for count in range(1 + STEADY_REQUESTS)]
    times_ms = []
    for seed in seeds:
        await clock.sleep(QUIET_S)
        times_ms.append(await or_fail(client.answer_ms(clock, length, seed, headers)))
    first_ms, *steady_ms = times_ms
    return FirstRequest(first_ms, percentile(steady_ms, 0.5), percentile(steady_ms, 0.99))


async def drain(target: Target, http: aiohttp.ClientSession, timeout_s: float) -> None:
    """Returns once the instance has no request in flight; at once for a program that can't drain.

    Raises: WarmupError ``request_failed``, also after ``timeout_s``.
    """
    if target.probes.drain is not None:
        await or_fail(Client(target, http).send(replace(target.probes.drain, timeout_s=timeout_s)))
