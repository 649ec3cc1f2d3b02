"""The end of PRELOAD: an instance is asked until it says that it is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import aiohttp

from toolkit.files import parsed_object
from toolkit.runtimes.base import HttpProbe, LogProbe
from toolkit.warm.client import Client, RequestFailedError, quick
from toolkit.warm.model import PARTS, Clock, OnProgress, Progress, Sign, StageReport, Target, WarmupError

KEYS_PATH = "/v1/warmup/keys"  # of the built-in servers
POLL_S = 0.1
POLL_TIMEOUT_S = 10.0
# Our own servers never answer their stage with an error: one that goes on doing so is broken, or is not ours.
MAX_STAGE_ERRORS = 30
# Others may say anything while they load, but a generation that "succeeds" without what it is for is one that fails.
FAILED_ANSWERS_S = 60.0
_SUCCESS = range(200, 300)


async def wait_loaded(
    target: Target,
    http: aiohttp.ClientSession,
    clock: Clock,
    on_progress: OnProgress,
    timeout_s: float | None = None,
) -> StageReport:
    """What PRELOAD did, once the instance says that it is loaded; until then it is asked every ``POLL_S``.

    Without ``timeout_s`` it waits for ever: the caller cancels.

    Raises: WarmupError ``loaded_timeout`` with the last answer; ``request_failed`` when a built-in server answers
    ``MAX_STAGE_ERRORS`` times in a row with an error, or any other for ``FAILED_ANSWERS_S`` with success and no answer.
    """
    client = Client(target, http)
    deadline_s = None if timeout_s is None else clock.now() + timeout_s
    told: Progress | None = None
    errors, right_at_s = 0, clock.now()
    patience_s = FAILED_ANSWERS_S if target.probes.stage is None else 0.0
    while True:
        report, progress, is_error = await _ask(client)
        errors, right_at_s = (errors + 1, right_at_s) if is_error else (0, clock.now())
        if errors >= MAX_STAGE_ERRORS and clock.now() - right_at_s >= patience_s:
            raise WarmupError(f"{progress.what} ({errors} times in a row)", code="request_failed")
        if progress != told or progress.sign == "not_yet":
            on_progress(progress)
            told = progress
        if report is not None:
            return report
        if deadline_s is not None and clock.now() >= deadline_s:
            raise WarmupError(f"not loaded in time; last: {progress.what}", code="loaded_timeout")
        await clock.sleep(POLL_S)


async def _ask(client: Client) -> tuple[StageReport | None, Progress, bool]:
    """The report when loaded, where PRELOAD stands, and whether the answer was an error that no waiting heals."""
    probes, says_loaded = client.target.probes, False
    try:
        if probes.stage is not None:
            return *read_stage(await client.send(quick(probes.stage, POLL_TIMEOUT_S))), False
        await _check_loaded(client)
        says_loaded = True
        if probes.deep is not None:
            await client.send(probes.deep)
    except RequestFailedError as error:
        built_in = probes.stage is not None
        is_error = says_loaded and error.status in _SUCCESS
        is_error = is_error or (built_in and error.status is not None and not error.not_yet)
        # Ours tells of each part that is done; of another, that it answers is all there may be to see.
        sign: Sign = "not_yet" if error.answers_not_yet and not built_in else "nothing"
        return None, Progress("PRELOAD", 0, None, error.reason, sign), is_error
    return StageReport(dict.fromkeys(PARTS)), Progress("PRELOAD", 1, 1, "loaded"), False


async def _check_loaded(client: Client) -> None:
    loaded = client.target.probes.loaded
    if isinstance(loaded, HttpProbe):
        await client.send(quick(loaded, POLL_TIMEOUT_S))
    elif isinstance(loaded, LogProbe):
        log_says = client.target.log_says
        if log_says is None or not log_says(loaded.pattern):
            raise RequestFailedError(f"no line of its log matches '{loaded.pattern}' yet", not_yet=True)


def read_stage(body: str) -> tuple[StageReport | None, Progress]:
    """What a built-in server's stage answer says: the report once it is loaded, and where PRELOAD stands. Pure."""
    stage = parsed_object(body) or {}
    parts = stage["parts"] if isinstance(stage.get("parts"), Mapping) else {}
    read_bytes = _count(stage, "bytes_read")
    if stage.get("stage") not in {"loaded", "serving"}:
        return None, Progress("PRELOAD", read_bytes or 0, None, _standing(stage, parts))
    attention = stage.get("attention")
    report = StageReport(
        parts={**dict.fromkeys(PARTS), **parts},
        bytes_read=read_bytes,
        attention=attention if isinstance(attention, str) else None,
        compile_events=_count(stage, "compile_events"),
        host_bytes=_sizes(stage, "host"),
        gpu_bytes=_sizes(stage, "gpu"),
    )
    return report, Progress("PRELOAD", read_bytes or 1, read_bytes or 1, "loaded")


async def compile_events(client: Client) -> int | None:
    """The instance's own count of compiles; None: not observable this way.

    Raises: RequestFailedError.
    """
    if client.target.probes.stage is None:
        return None
    stage = parsed_object(await client.send(client.target.probes.stage)) or {}
    return _count(stage, "compile_events")


async def own_keys(client: Client) -> tuple[int, int] | None:
    """How many keys a built-in server has run, and of how many; None while it does not tell."""
    try:
        told = await _keys(client)
    except RequestFailedError:
        return None
    keys, done = told.get("keys"), told.get("done")
    return (len(done), len(keys)) if isinstance(keys, list) and isinstance(done, list) else None


async def compiled_keys(client: Client) -> tuple[str, ...]:
    """What a built-in server's libraries have compiled, by the keys of their own caches, oldest first.

    Raises: RequestFailedError.
    """
    keys = (await _keys(client)).get("compiled")
    return tuple(map(str, keys)) if isinstance(keys, list) else ()


async def _keys(client: Client) -> Mapping[str, Any]:
    return parsed_object(await client.send(quick(HttpProbe(KEYS_PATH), POLL_TIMEOUT_S))) or {}


def _standing(stage: Mapping[str, Any], parts: Mapping[str, Any]) -> str:
    if "stage" not in stage:
        return "its stage answer is not JSON with a 'stage'"
    over = ", ".join(name for name in parts if parts[name] is not None)
    return f"done: {over}" if over else "starting"


def _sizes(stage: Mapping[str, Any], where: str) -> dict[str, int]:
    """Bytes by part, of ``memory_bytes: {PART: {host, gpu}}``."""
    parts = stage.get("memory_bytes")
    told = {name: size.get(where) for name, size in parts.items()} if isinstance(parts, Mapping) else {}
    return {name: size for name, size in told.items() if isinstance(size, int)}


def _count(stage: Mapping[str, Any], name: str) -> int | None:
    value = stage.get(name)
    return value if isinstance(value, int) else None
