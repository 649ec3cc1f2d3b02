"""PRIME: every shape runs, the canary's answer is right, first tokens are steady, nothing compiles meanwhile."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import aiohttp

from toolkit.canaries import Answer
from toolkit.config.models import Warmup
from toolkit.runtimes.base import CanaryCheck, Generation, HttpProbe
from toolkit.warm import canary, canary_set, prompts
from toolkit.warm.client import MAX_EMPTY_ANSWERS, Client, RequestFailedError, or_fail, shorten
from toolkit.warm.model import CanaryResult, Clock, OnProgress, Progress, Proof, Target, WarmupError
from toolkit.warm.preload import compile_events, json_object
from toolkit.warm.steady import WINDOW, Sample, percentile, steady

RETRY_S = 0.5
# A program whose ready path answers too early gets this long to answer its first request.
PATIENCE_S = 120.0
# How long a server may take to become steady: both must be used up. A busy host disturbs single probes for seconds.
MIN_PROBES = 24
STEADY_WITHIN_S = 60.0
MAX_ROUNDS = 4
TOLD_PROBES = 64

T = TypeVar("T")


async def prime(
    target: Target, http: aiohttp.ClientSession, clock: Clock, mode: Warmup, on_progress: OnProgress
) -> Proof:
    """The proof that the instance is warm.

    ``full`` runs every warm-up request, ``single`` the first; ``none`` asks the canary and proves nothing else.

    Raises: WarmupError.
    """
    run = _Prime(Client(target, http), clock, on_progress, _warmups(target, mode))
    started_s = clock.now()
    keys = await run.warm()
    verdict = await run.canary()
    answers = await run.canary_set()
    samples, compiles = await run.prove(target.probes.generation if mode != "none" else None)
    steady_ms = [sample.ms for sample in samples[-WINDOW:]]
    return Proof(
        canary=verdict,
        first_token_ms=tuple(sample.ms for sample in samples),
        p50_ms=percentile(steady_ms, 0.5),
        p99_ms=percentile(steady_ms, 0.99),
        compile_events=compiles,
        keys=keys,
        seconds=clock.now() - started_s,
        answers=answers,
    )


@dataclass(frozen=True)
class _Prime:
    """One PRIME: what its steps share. Its steps are the warm-up requests, the canary, and ``WINDOW`` probes."""

    client: Client
    clock: Clock
    on_progress: OnProgress
    warmups: tuple[HttpProbe, ...]

    async def warm(self) -> tuple[str, ...]:
        """The compile keys that have run."""
        keys: list[str] = []
        for done, probe in enumerate(self.warmups):
            self._tell(done, f"{probe.method} {probe.path}")
            keys.extend(_keys(await self._patiently(done, partial(self.client.send, probe))))
        return tuple(dict.fromkeys(keys))

    async def canary(self) -> CanaryResult | None:
        """The verdict on a right answer; None without a canary."""
        check = self.client.target.probes.canary
        if check is None:
            return None
        done = len(self.warmups)
        self._tell(done, "canary")
        verdict = await self._patiently(done, partial(ask_canary, self.client, check))
        if not verdict.ok:
            expected, got = shorten(verdict.expected, {}), shorten(verdict.got, {})
            raise WarmupError(
                f"the canary's answer is wrong: expected '{expected}', got '{got}'",
                hint=canary_set.hint("context_fmha") if self.client.target.probes.canary_set else None,
                code="canary_wrong",
                canary={"ok": False, "expected": verdict.expected, "got": verdict.got},
            )
        return verdict

    async def canary_set(self) -> Mapping[str, Answer]:
        """The right answers to the prompts that reach cached blocks and chunks, by prompt; none without any."""
        found = self.client.target.probes.canary_set
        if found is None:
            return {}
        done = len(self.warmups)
        self._tell(done, f"canary set: {', '.join(prompt.id for prompt in found.prompts)}")
        return await canary_set.prove(self.client, found, partial(self._patiently, done))

    async def prove(self, generation: Generation | None) -> tuple[tuple[Sample, ...], int | None]:
        """The samples of the round that proved it, and the compile counter at its end."""
        before = await or_fail(compile_events(self.client))
        if generation is None:
            return (), before
        for _ in range(MAX_ROUNDS):
            samples = await self._until_steady(generation)
            after = await or_fail(compile_events(self.client))
            if after == before:
                return samples, after
            before = after
            self._tell(len(self.warmups) + 1, "something compiled during the proof: once more")
        raise WarmupError(
            f"something compiled during each of {MAX_ROUNDS} proofs",
            hint="Its warm-up does not reach every shape that requests use.",
            code="compile_during_proof",
        )

    async def _until_steady(self, generation: Generation) -> tuple[Sample, ...]:
        lengths = prompts.probe_lengths(generation.max_input_tokens)
        deadline_s = self.clock.now() + STEADY_WITHIN_S
        samples: list[Sample] = []
        while not steady(samples):
            index = len(samples)
            if index >= MIN_PROBES and self.clock.now() >= deadline_s:
                raise _never_steady(samples)
            length = prompts.length_of_probe(index, lengths)
            seed = index * MAX_EMPTY_ANSWERS
            ms = await or_fail(self.client.answer_ms(self.clock, length, seed, generation.headers))
            samples.append(Sample(length, ms))
            self._tell(len(self.warmups) + 1 + min(index, WINDOW - 1), f"probe {index + 1}: {ms:.0f} ms")
        return tuple(samples)

    async def _patiently(self, done: int, ask: Callable[[], Awaitable[T]]) -> T:
        """The answer; while the server says "not yet" it is asked again, for ``PATIENCE_S`` at most."""
        deadline_s = self.clock.now() + PATIENCE_S
        while True:
            try:
                return await ask()
            except RequestFailedError as error:
                if not error.not_yet or self.clock.now() >= deadline_s:
                    raise WarmupError(error.reason, code="request_failed") from error
                self._tell(done, error.reason)
            await self.clock.sleep(RETRY_S)

    def _tell(self, done: int, what: str) -> None:
        self.on_progress(Progress("PRIME", done, len(self.warmups) + 1 + WINDOW, what))


def _warmups(target: Target, mode: Warmup) -> tuple[HttpProbe, ...]:
    asked = {"full": len(target.probes.warmup), "single": 1, "none": 0}[mode]
    return tuple(_with_mode(probe, mode) for probe in target.probes.warmup[:asked])


def _with_mode(probe: HttpProbe, mode: Warmup) -> HttpProbe:
    """A built-in server is told the mode in its body."""
    if isinstance(probe.body, Mapping) and "mode" in probe.body:
        return replace(probe, body={**probe.body, "mode": mode})
    return probe


async def ask_canary(client: Client, check: CanaryCheck) -> CanaryResult:
    if check.request is not None:
        return await _ask_fixed_canary(client, check.request)
    generation = client.target.probes.generation
    if generation is not None and generation.kind == "embeddings":
        return canary.judge_vector(check, await client.embed(check.prompt, generation.headers))
    token_ids = check.expected_tokens is not None
    answer = await client.complete(check.prompt, check.max_tokens, token_ids=token_ids)
    return canary.judge_text(check, answer.text, answer.token_ids)


async def _ask_fixed_canary(client: Client, probe: HttpProbe) -> CanaryResult:
    body = await client.send(replace(probe, expect_text=None))
    wanted = f"status {probe.expect_status}"
    if probe.expect_text is None:
        return CanaryResult(True, wanted, wanted)
    return CanaryResult(probe.expect_text in body, f"{wanted} with '{probe.expect_text}'", shorten(body, probe.headers))


def _never_steady(samples: list[Sample]) -> WarmupError:
    last = ", ".join(f"{sample.ms:.0f}" for sample in samples[-WINDOW:])
    return WarmupError(
        f"first-token times are not steady after {len(samples)} requests; the last took {last} ms",
        hint="Something else uses its cores or its GPU, or its warm-up misses shapes.",
        code="never_steady",
        first_token_ms=[round(sample.ms, 3) for sample in samples[-TOLD_PROBES:]],
    )


def _keys(body: str) -> list[str]:
    keys = json_object(body).get("keys")
    return [key if isinstance(key, str) else json.dumps(key) for key in keys] if isinstance(keys, list) else []
