"""The warm-up of one instance, request by request: PRELOAD's end, PRIME and its proof, register, drain."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import aiohttp

from toolkit.config.models import Warmup
from toolkit.runtimes.base import CanaryCheck, HttpProbe, LogProbe
from toolkit.warm import canary as judge
from toolkit.warm import prompts
from toolkit.warm.http import TOKEN_HEADER, RequestFailedError, complete, embed, first_token_ms, send, shorten
from toolkit.warm.model import (
    PARTS,
    CanaryResult,
    Clock,
    FirstRequest,
    OnProgress,
    Progress,
    Proof,
    StageReport,
    Target,
    WarmupError,
)
from toolkit.warm.steady import WINDOW, Sample, percentile, steady

POLL_S = 0.1
POLL_TIMEOUT_S = 10.0
RETRY_S = 0.5
# A program whose ready path answers too early gets this long to answer its first request.
PATIENCE_S = 120.0
MAX_PROBES = 64
MAX_RESTARTS = 3
PROBE_TOKENS = 2
# After an answer without text: the first token may be an end token, or half a character.
PROBE_TOKENS_AFTER_EMPTY = 16
MAX_EMPTY_ANSWERS = 8
STEADY_REQUESTS = 10
FIRST_REQUEST_SEED = 1_000_000

T = TypeVar("T")


async def wait_loaded(
    target: Target,
    http: aiohttp.ClientSession,
    clock: Clock,
    on_progress: OnProgress,
    timeout_s: float | None = None,
) -> StageReport:
    """What PRELOAD did, once the instance says that it is loaded; until then it is asked every ``POLL_S``.

    Without ``timeout_s`` it waits for ever: the caller cancels.

    Raises: WarmupError ``loaded_timeout`` with the last answer.
    """
    deadline_s = None if timeout_s is None else clock.now() + timeout_s
    told = Progress("PRELOAD", 0, None, "")
    while True:
        report, progress = await _loaded_once(target, http)
        if progress != told:
            on_progress(progress)
            told = progress
        if report is not None:
            return report
        if deadline_s is not None and clock.now() >= deadline_s:
            raise WarmupError(f"not loaded in time; last: {progress.what}", code="loaded_timeout")
        await clock.sleep(POLL_S)


async def prime(
    target: Target, http: aiohttp.ClientSession, clock: Clock, mode: Warmup, on_progress: OnProgress
) -> Proof:
    """The proof that the instance is warm: every shape has run, the canary is right, first tokens are steady.

    ``none`` skips the shapes and the first-token probes: only the canary is asked.

    Raises: WarmupError.
    """
    run = _Prime(target, http, clock, on_progress, _warmups(target, mode))
    started_s = clock.now()
    keys = await run.warm()
    canary = await run.canary()
    samples, compile_events = await run.prove() if mode != "none" else ((), await _compile_events(target, http))
    steady_ms = [sample.ms for sample in samples[-WINDOW:]]
    return Proof(
        canary=canary,
        first_token_ms=tuple(sample.ms for sample in samples),
        p50_ms=percentile(steady_ms, 0.5),
        p99_ms=percentile(steady_ms, 0.99),
        compile_events=compile_events,
        keys=keys,
        seconds=clock.now() - started_s,
    )


async def register(target: Target, http: aiohttp.ClientSession) -> None:
    """Returns once the instance answers everybody; nothing to do for a program that always does.

    Raises: WarmupError ``request_failed``.
    """
    if target.probes.register is not None:
        await _or_fail(send(target, http, target.probes.register))


async def first_request(target: Target, http: aiohttp.ClientSession, proof: Proof, clock: Clock) -> FirstRequest:
    """How long the first ordinary request takes (a prompt and a length not used before), then steady ones of its length.

    Raises: WarmupError ``request_failed``.
    """
    generation = target.probes.generation
    if generation is None:
        return FirstRequest(None, None, None)
    length = prompts.unseen_length(generation.max_input_tokens)
    headers = {name: value for name, value in generation.headers.items() if name != TOKEN_HEADER}
    seeds = range(FIRST_REQUEST_SEED, FIRST_REQUEST_SEED + 1 + STEADY_REQUESTS)
    times = [await _or_fail(_answer_ms(target, http, clock, length, seed, headers)) for seed in seeds]
    steady_ms = [ms for ms in times[1:] if ms is not None]
    return FirstRequest(times[0], percentile(steady_ms, 0.5), percentile(steady_ms, 0.99))


async def drain(target: Target, http: aiohttp.ClientSession, timeout_s: float) -> None:
    """Returns once the instance has no request in flight; at once for a program that can't drain.

    Raises: WarmupError ``request_failed``, also after ``timeout_s``.
    """
    if target.probes.drain is not None:
        await _or_fail(send(target, http, replace(target.probes.drain, timeout_s=timeout_s)))


@dataclass(frozen=True)
class _Prime:
    """One PRIME: what its steps share."""

    target: Target
    http: aiohttp.ClientSession
    clock: Clock
    on_progress: OnProgress
    warmups: tuple[HttpProbe, ...]

    async def warm(self) -> tuple[str, ...]:
        keys: list[str] = []
        for done, probe in enumerate(self.warmups):
            self._tell(done, f"{probe.method} {probe.path}")
            body = await self._patiently(done, lambda probe=probe: send(self.target, self.http, probe))
            keys.extend(_keys(body))
        return tuple(dict.fromkeys(keys))

    async def canary(self) -> CanaryResult | None:
        check = self.target.probes.canary
        if check is None:
            return None
        done = len(self.warmups)
        self._tell(done, "canary")
        result = await self._patiently(done, lambda: _ask_canary(self.target, self.http, check))
        if not result.ok:
            what = f"the canary's answer is wrong: expected {result.expected}, got {result.got}"
            details = {"ok": False, "expected": result.expected, "got": result.got}
            raise WarmupError(what, code="canary_wrong", canary=details)
        return result

    async def prove(self) -> tuple[tuple[Sample, ...], int | None]:
        """The samples of the round that proved it, and the compile counter at its end."""
        before = await _compile_events(self.target, self.http)
        if self.target.probes.generation is None:
            return (), before
        for _ in range(1 + MAX_RESTARTS):
            samples = await self._until_steady()
            after = await _compile_events(self.target, self.http)
            if after == before:
                return samples, after
            self._tell(len(self.warmups) + 1, f"{_count(before, after)} during the proof: again")
            before = after
        what = f"something compiled during each of {1 + MAX_RESTARTS} proofs"
        raise WarmupError(
            what, hint="Its warm-up does not reach every shape that requests use.", code="compile_during_proof"
        )

    async def _until_steady(self) -> tuple[Sample, ...]:
        generation = self.target.probes.generation
        lengths = prompts.probe_lengths(generation.max_input_tokens if generation else None)
        samples: list[Sample] = []
        for index in range(MAX_PROBES):
            length = prompts.length_of_probe(index, lengths)
            ms = await _or_fail(self._probe(length, index))
            samples.append(Sample(length, ms))
            self._tell(len(self.warmups) + 1 + min(index, WINDOW - 1), f"probe {index + 1}: {ms:.0f} ms")
            if steady(samples):
                return tuple(samples)
        raise _never_steady(samples)

    async def _probe(self, length: int, index: int) -> float:
        generation = self.target.probes.generation
        headers = generation.headers if generation else {}
        return await _answer_ms(self.target, self.http, self.clock, length, index * MAX_EMPTY_ANSWERS, headers)

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


async def _loaded_once(target: Target, http: aiohttp.ClientSession) -> tuple[StageReport | None, Progress]:
    """The report when loaded, and where PRELOAD stands."""
    probes = target.probes
    try:
        if probes.stage is not None:
            return _read_stage(await send(target, http, _quick(probes.stage)))
        await _check_loaded(target, http)
        if probes.deep is not None:
            await send(target, http, probes.deep)
    except RequestFailedError as error:
        return None, Progress("PRELOAD", 0, None, error.reason)
    return StageReport(dict.fromkeys(PARTS)), Progress("PRELOAD", 1, 1, "loaded")


async def _check_loaded(target: Target, http: aiohttp.ClientSession) -> None:
    loaded = target.probes.loaded
    if isinstance(loaded, HttpProbe):
        await send(target, http, _quick(loaded))
    elif isinstance(loaded, LogProbe):
        text = target.read_log() if target.read_log is not None else ""
        if re.search(loaded.pattern, text, re.MULTILINE) is None:
            raise RequestFailedError(f"no line of its log matches '{loaded.pattern}' yet", not_yet=True)


def _quick(probe: HttpProbe) -> HttpProbe:
    return replace(probe, timeout_s=min(probe.timeout_s, POLL_TIMEOUT_S))


def _read_stage(body: str) -> tuple[StageReport | None, Progress]:
    stage = _object(body)
    parts = stage.get("parts")
    told = parts if isinstance(parts, Mapping) else {}
    bytes_read = stage.get("bytes_read")
    done = bytes_read if isinstance(bytes_read, int) else 0
    if stage.get("stage") not in {"loaded", "serving"}:
        finished = [name for name in told if told[name] is not None]
        return None, Progress("PRELOAD", done, None, f"done: {', '.join(finished)}" if finished else "starting")
    report = StageReport(
        parts={**dict.fromkeys(PARTS), **told},
        bytes_read=stage.get("bytes_read"),
        attention=stage.get("attention"),
        compile_events=stage.get("compile_events"),
    )
    return report, Progress("PRELOAD", done, done, "loaded")


def _warmups(target: Target, mode: Warmup) -> tuple[HttpProbe, ...]:
    asked = {"full": len(target.probes.warmup), "single": 1, "none": 0}[mode]
    return tuple(_with_mode(probe, mode) for probe in target.probes.warmup[:asked])


def _with_mode(probe: HttpProbe, mode: Warmup) -> HttpProbe:
    """A built-in server is told the mode in its body."""
    if isinstance(probe.body, Mapping) and "mode" in probe.body:
        return replace(probe, body={**probe.body, "mode": mode})
    return probe


async def _ask_canary(target: Target, http: aiohttp.ClientSession, check: CanaryCheck) -> CanaryResult:
    if check.request is not None:
        return await _ask_fixed_canary(target, http, check.request)
    generation = target.probes.generation
    if generation is not None and generation.kind == "embeddings":
        return judge.judge_vector(check, await embed(target, http, check.prompt, generation.headers))
    answer = await complete(target, http, check.prompt, check.max_tokens)
    return judge.judge_text(check, answer.text, answer.token_ids)


async def _ask_fixed_canary(target: Target, http: aiohttp.ClientSession, probe: HttpProbe) -> CanaryResult:
    body = await send(target, http, replace(probe, expect_text=None))
    wanted = f"status {probe.expect_status}"
    if probe.expect_text is None:
        return CanaryResult(True, wanted, wanted)
    ok = probe.expect_text in body
    return CanaryResult(ok, f"{wanted} with '{probe.expect_text}'", shorten(body, probe.headers))


async def _answer_ms(
    target: Target, http: aiohttp.ClientSession, clock: Clock, length: int, seed: int, headers: Mapping[str, str]
) -> float:
    """Milliseconds to the first token, or to the whole answer where there are no tokens."""
    generation = target.probes.generation
    if generation is None or generation.kind == "completions":
        return await _first_token(target, http, clock, length, seed, headers)
    started_s = clock.now()
    if generation.kind == "embeddings":
        await embed(target, http, prompts.prompt(length, seed), headers)
    elif generation.request is not None:
        await send(target, http, generation.request)
    return (clock.now() - started_s) * 1000


async def _first_token(
    target: Target, http: aiohttp.ClientSession, clock: Clock, length: int, seed: int, headers: Mapping[str, str]
) -> float:
    for attempt in range(MAX_EMPTY_ANSWERS):
        prompt = prompts.prompt(length, seed + attempt)
        tokens = PROBE_TOKENS_AFTER_EMPTY if attempt else PROBE_TOKENS
        ms = await first_token_ms(target, http, clock, prompt, tokens, headers)
        if ms is not None:
            return ms
    raise RequestFailedError(f"{MAX_EMPTY_ANSWERS} answers in a row hold no text")


async def _compile_events(target: Target, http: aiohttp.ClientSession) -> int | None:
    if target.probes.stage is None:
        return None
    count = _object(await _or_fail(send(target, http, target.probes.stage))).get("compile_events")
    return count if isinstance(count, int) else None


async def _or_fail(answer: Awaitable[T]) -> T:
    try:
        return await answer
    except RequestFailedError as error:
        raise WarmupError(error.reason, code="request_failed") from error


def _never_steady(samples: list[Sample]) -> WarmupError:
    last = ", ".join(f"{sample.ms:.0f}" for sample in samples[-WINDOW:])
    return WarmupError(
        f"first-token times are not steady after {len(samples)} requests; the last took {last} ms",
        hint="Something else uses its cores or its GPU, or its warm-up misses shapes.",
        code="never_steady",
        first_token_ms=[round(sample.ms, 3) for sample in samples],
    )


def _keys(body: str) -> list[str]:
    keys = _object(body).get("keys")
    return [key if isinstance(key, str) else json.dumps(key) for key in keys] if isinstance(keys, list) else []


def _object(body: str) -> Mapping[str, Any]:
    """The JSON object in ``body``; anything else tells nothing."""
    try:
        document = json.loads(body)
    except ValueError:
        return {}
    return document if isinstance(document, Mapping) else {}


def _count(before: int | None, after: int | None) -> str:
    return f"{after - before} compiled" if before is not None and after is not None else "compile counter changed"
