"""PRIME: every shape runs, the canary's answer is right, first tokens are steady, nothing compiles meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import aiohttp

from toolkit.canaries import Answer
from toolkit.config.models import Warmup
from toolkit.runtimes.base import CanaryCheck, Generation, HttpProbe
from toolkit.warm import canary, canary_set, prompts, walk
from toolkit.warm.client import MAX_EMPTY_ANSWERS, Client, RequestFailedError, or_fail, shorten
from toolkit.warm.compiles import COUNTER, Seen, Watch, in_words, since
from toolkit.warm.model import (
    CanaryResult,
    Clock,
    Coverage,
    Memory,
    OnProgress,
    Progress,
    Proof,
    Sign,
    Target,
    WarmupError,
)
from toolkit.warm.parts import Measure, Parts
from toolkit.warm.preload import compile_events, own_keys
from toolkit.warm.steady import WINDOW, Sample, percentile, steady
from toolkit.warm.walk import Key

RETRY_S = 0.5
# A program whose ready path answers too early gets this long to answer its first request.
PATIENCE_S = 120.0
# How long a server may take to become steady: both must be used up. A busy host disturbs probes for minutes, and a new
# attempt would meet the same host.
MIN_PROBES = 24
STEADY_WITHIN_S = 180.0
MAX_ROUNDS = 4
TOLD_PROBES = 64
KEYS_POLL_S = 1.0

T = TypeVar("T")


async def _unmeasured() -> Memory:
    return Memory()


async def prime(
    target: Target,
    http: aiohttp.ClientSession,
    clock: Clock,
    mode: Warmup,
    on_progress: OnProgress,
    *,
    watch: Watch | None = None,
    measure: Measure = _unmeasured,
    patience_s: float = PATIENCE_S,
) -> Proof:
    """The proof that the instance is warm.

    ``full`` runs every warm-up request, ``single`` the first; ``none`` asks the canary and proves nothing else.
    ``watch``: what is seen of compiles; by default only a built-in server's own counter. ``measure``: the memory that
    the instance holds. ``patience_s``: how long it may say "not yet".

    Raises: WarmupError.
    """
    client = Client(target, http)
    keys = walk.plan(target.probes, mode)
    run = _Prime(client, clock, on_progress, keys, watch or partial(_counted, client), patience_s)
    parts = Parts(clock, measure)
    async with parts.part("compile"):
        coverage = await run.warm()
    async with parts.part("canary"):
        verdict = await run.canary()
        answers = await run.canary_set(verdict)
    async with parts.part("proof"):
        samples, compiles = await run.prove(target.probes.generation if mode != "none" else None)
    steady_ms = [sample.ms for sample in samples[-WINDOW:]]
    return Proof(
        canary=verdict,
        first_token_ms=tuple(sample.ms for sample in samples),
        p50_ms=percentile(steady_ms, 0.5),
        p99_ms=percentile(steady_ms, 0.99),
        compile_events=compiles.counts.get(COUNTER),
        keys=coverage.ran,
        seconds=sum(parts.seconds.values()),
        answers=answers,
        coverage=coverage,
        compiles=compiles,
        parts=parts.seconds,
        host_bytes=parts.host_bytes,
        gpu_bytes=parts.gpu_bytes,
    )


async def _counted(client: Client) -> Seen:
    """What a built-in server counts itself."""
    if client.target.probes.stage is None:
        return Seen()
    return Seen({COUNTER: await compile_events(client)})


@dataclass(frozen=True)
class _Prime:
    """One PRIME: what its steps share. Its steps are the keys, the canary, and ``WINDOW`` probes."""

    client: Client
    clock: Clock
    on_progress: OnProgress
    keys: tuple[Key, ...]
    watch: Watch
    patience_s: float

    async def warm(self) -> Coverage:
        """The keys that have run."""
        return await or_fail(walk.walk(self.keys, self._send_key, self._tell_key, self.client.target.probes.unseen))

    def _tell_key(self, done: int, total: int, name: str) -> None:
        self._tell(done, f"key {done + 1} of {total}: {name}")

    async def _send_key(self, probe: HttpProbe) -> str:
        """The answer; several prompts at once are not asked again as they are: fewer may fit."""
        several = isinstance(probe.body, Mapping) and isinstance(probe.body.get("prompt"), list)
        if several:
            return await self.client.run(probe)
        sent = asyncio.ensure_future(self._again_while_not_yet(0, partial(self.client.run, probe)))
        try:
            while not (await asyncio.wait({sent}, timeout=KEYS_POLL_S))[0]:
                await self._tell_own_keys()
        finally:
            sent.cancel()
        return sent.result()

    async def _tell_own_keys(self) -> None:
        """How far a built-in server is with its keys, all of which one request runs."""
        if self.client.target.probes.stage is not None and (told := await own_keys(self.client)):
            self._tell(told[0], f"key {told[0]} of {told[1]}")

    async def canary(self) -> CanaryResult | None:
        """The verdict on a right answer; None without a canary."""
        check = self.client.target.probes.canary
        if check is None:
            return None
        done = len(self.keys)
        self._tell(done, "canary")
        verdict = await self._patiently(done, partial(ask_canary, self.client, check))
        if not verdict.ok:
            expected, got = shorten(verdict.expected, {}), shorten(verdict.got, {})
            raise WarmupError(
                f"the canary's answer is wrong: expected '{expected}', got '{got}'",
                hint=self._where_to_look(verdict),
                code="canary_wrong",
                canary={"ok": False, "expected": verdict.expected, "got": verdict.got},
            )
        return verdict

    def _where_to_look(self, verdict: CanaryResult) -> str | None:
        if self.client.target.probes.canary_set is None:
            return None
        empty = "It answered, and generated nothing: its own log may say why."
        return canary_set.hint("context_fmha") if verdict.got.strip() else empty

    async def canary_set(self, verdict: CanaryResult | None = None) -> Mapping[str, Answer]:
        """The right answers to the prompts that reach cached blocks and chunks, by prompt; none without any."""
        found = self.client.target.probes.canary_set
        if found is None:
            return {}
        done = len(self.keys)
        self._tell(done, f"canary set: {', '.join(prompt.id for prompt in found.prompts)}")
        return await canary_set.prove(self.client, found, partial(self._patiently, done), self._answered(verdict))

    def _answered(self, verdict: CanaryResult | None) -> Mapping[str, str]:
        """The canary's answer by its prompt, where it was judged as text."""
        check = self.client.target.probes.canary
        if check is None or verdict is None or not (check.expected_text or check.repeats_only):
            return {}
        return {check.prompt: verdict.got}

    async def prove(self, generation: Generation | None) -> tuple[tuple[Sample, ...], Seen]:
        """The samples of the round that proved it, and what was seen of compiles at its end."""
        if generation is None:
            return (), await or_fail(self.watch())
        for _ in range(MAX_ROUNDS):
            before = await self._nothing_compiles()
            samples, never = await self._round(generation)
            after = await or_fail(self.watch())
            compiled = since(before, after)
            if not compiled and never is not None:
                raise never
            if not compiled:
                return samples, after
            self._tell(len(self.keys) + 1, f"compiled during the proof ({in_words(compiled)}): once more")
        raise WarmupError(
            f"something compiled during each of {MAX_ROUNDS} proofs: {in_words(compiled)}",
            hint="Its warm-up does not reach every shape that requests use.",
            code="compile_during_proof",
            first_token_ms=_told_ms(samples),
        )

    async def _nothing_compiles(self) -> Seen:
        """What was seen of compiles, once no compiler is at work: what it makes may be what the next request needs."""
        while (seen := await or_fail(self.watch())).running is not None:
            self._tell(len(self.keys) + 1, f"waits for a compiler to end: {seen.running}", "nothing")
            await self.clock.sleep(RETRY_S)
        return seen

    async def _round(self, generation: Generation) -> tuple[tuple[Sample, ...], WarmupError | None]:
        """The samples of a round, and why it never became steady: a compile explains that."""
        try:
            return await self._until_steady(generation), None
        except WarmupError as error:
            if error.code != "never_steady":
                raise
            return (), error

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
            self._tell(len(self.keys) + 1 + min(index, WINDOW - 1), f"probe {index + 1}: {ms:.0f} ms")
        return tuple(samples)

    async def _patiently(self, done: int, ask: Callable[[], Awaitable[T]]) -> T:
        """The answer; while the server says "not yet" it is asked again, for ``patience_s`` at most."""
        return await or_fail(self._again_while_not_yet(done, ask))

    async def _again_while_not_yet(self, done: int, ask: Callable[[], Awaitable[T]]) -> T:
        deadline_s = self.clock.now() + self.patience_s
        while True:
            try:
                return await ask()
            except RequestFailedError as error:
                if not error.not_yet or self.clock.now() >= deadline_s:
                    raise
                self._tell(done, error.reason, "not_yet" if error.answers_not_yet else "nothing")
            await self.clock.sleep(RETRY_S)

    def _tell(self, done: int, what: str, sign: Sign = "step") -> None:
        self.on_progress(Progress("PRIME", done, len(self.keys) + 1 + WINDOW, what, sign))


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
        first_token_ms=_told_ms(samples),
    )


def _told_ms(samples: Sequence[Sample]) -> list[float]:
    return [round(sample.ms, 3) for sample in samples[-TOLD_PROBES:]]
