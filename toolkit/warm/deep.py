"""What a serving instance is asked again and again: one answer at the lowest cost, and its canary."""

from __future__ import annotations

from dataclasses import replace

import aiohttp

from toolkit.runtimes.base import CanaryCheck, Generation, HttpProbe
from toolkit.warm import prompts
from toolkit.warm.client import Client, RequestFailedError, quick
from toolkit.warm.model import CanaryResult, Target
from toolkit.warm.prime import ask_canary


async def one_answer(target: Target, http: aiohttp.ClientSession, timeout_s: float) -> None:
    """Returns once the instance did the least piece of its real work: its deep probe, or one token.

    Raises: RequestFailedError.
    """
    client, probes = Client(target, http, timeout_s), target.probes
    if probes.deep is not None:
        await client.send(quick(probes.deep, timeout_s))
    elif probes.generation is not None:
        await _generate(client, probes.generation, timeout_s)


async def _generate(client: Client, generation: Generation, timeout_s: float) -> None:
    # A length that PRIME used: nothing has to compile for it.
    prompt = prompts.prompt(prompts.probe_lengths(generation.max_input_tokens)[0], 0)
    if generation.kind == "completions":
        piece = await client.complete(prompt, 1, token_ids=False)
        if not piece.text and not piece.finished:
            raise RequestFailedError(f"POST {generation.path}: the answer holds no token")
    elif generation.kind == "embeddings":
        await client.embed(prompt, generation.headers)
    elif generation.request is not None:
        await client.send(quick(generation.request, timeout_s))


async def canary(target: Target, http: aiohttp.ClientSession, timeout_s: float) -> CanaryResult | None:
    """The canary's verdict; None where there is no canary.

    Raises: RequestFailedError.
    """
    check = target.probes.canary
    return None if check is None else await ask_canary(Client(target, http, timeout_s), _quick(check, timeout_s))


def _quick(check: CanaryCheck, timeout_s: float) -> CanaryCheck:
    request: HttpProbe | None = check.request
    return check if request is None else replace(check, request=quick(request, timeout_s))


async def metrics(target: Target, http: aiohttp.ClientSession, timeout_s: float) -> str | None:
    """The instance's metrics page; None where it has none, or does not give it."""
    if target.probes.metrics is None:
        return None
    try:
        return await Client(target, http).send(quick(target.probes.metrics, timeout_s))
    except RequestFailedError:
        return None
