"""Servers that would look ready too early, as real processes: none is called READY before it is, and each is told why.

Times are scaled down; what is checked is order and invariants.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from tests.faults.injections import can_mount
from tests.faults.keeper import ledger
from tests.ports import free_port
from tests.supervise.conftest import supervise, until
from toolkit.assemble.reservation import Reservation, tended
from toolkit.config.models import Restart
from toolkit.errors import ToolkitError
from toolkit.reserve import Owner, Request, Totals
from toolkit.runtimes.base import CanaryCheck, Generation, HttpProbe, Launch, Probes
from toolkit.supervise import history
from toolkit.supervise.diagnose_log import diagnose
from toolkit.supervise.service import ServiceRun
from toolkit.supervise.supervisor import Supervisor
from toolkit.warm import prime

SERVER = Path(__file__).with_name("warm_server.py")
STEADY = {"every_s": [0.04]}  # far above what a busy machine adds
MANY = Restart(max_restarts=5, window="60s")
LONG_S = 600.0


def warmup(*prompts: int) -> tuple[HttpProbe, ...]:
    """A request of so many prompts each."""
    bodies: list[Any] = [["a b c"] * count if count > 1 else "a b c" for count in prompts]
    return tuple(HttpProbe("/v1/completions", "POST", {"model": "m", "prompt": body}) for body in bodies)


def service(
    how: dict[str, Any], *, window_s: float = 20.0, keys: tuple[int, ...] = (1,), before: str = "", **changes: Any
) -> ServiceRun:
    """``before``: what a shell does before the server is there."""
    port = free_port()
    probes = Probes(
        loaded=HttpProbe("/health", timeout_s=1.0),
        warmup=warmup(*keys),
        canary=CanaryCheck("The capital of France is", 8, expected_text=" Paris"),
        generation=Generation("completions", "/v1/completions", "m", 64),
    )
    cache = changes.get("cache_dir")
    env = {"STANDIN": json.dumps({**STEADY, **how})} | ({"TRITON_CACHE_DIR": str(cache / "triton")} if cache else {})

    argv = (sys.executable, "-S", str(SERVER), str(port))
    if before:
        argv = ("/bin/sh", "-c", f'{before}; exec "$@"', "sh", *argv)

    def launch(_: int) -> Launch:
        return Launch(argv, env, probes, preload_window_s=window_s)

    facts: dict[str, Any] = {"grace_s": 1.0, "restart": Restart(max_restarts=0, window="60s"), **changes}
    return ServiceRun("llm", "command", launch, port, **facts)


class Run:
    """One run of a service: its states in order, and how it ended."""

    def __init__(
        self, state_dir: Path, run: ServiceRun, noted: Callable[[Supervisor], None] = lambda _: None, **changes: Any
    ) -> None:
        self.states: list[str] = []
        self._noted = noted
        self.supervisor = supervise(state_dir, run, on_change=self._note, **{"diagnose": diagnose, **changes})
        self.document: dict[str, Any] = {}
        self.error: ToolkitError | None = None

    def _note(self, supervisor: Supervisor) -> None:
        state = supervisor.snapshot()["services"][0]["state"]
        if not self.states or self.states[-1] != state:
            self.states.append(state)
        self._noted(supervisor)

    async def to_the_end(self) -> Run:
        try:
            self.document = await self.supervisor.run("ready", 60.0)
        except ToolkitError as error:
            self.error, self.document = error, error.details["status"]
        return self

    @property
    def service(self) -> dict[str, Any]:
        found: dict[str, Any] = (self.document or self.supervisor.snapshot())["services"][0]
        return found

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.supervisor._journal.recent if event["kind"] == kind]

    def assert_never_ready(self, reason: str) -> None:
        """It was never READY, ended as FAILED, and one line of the status says why."""
        assert "SERVING" not in self.states
        assert self.service["state"] == "FAILED"
        summary = self.service["last_failure"]["summary"]
        assert reason in summary
        assert "\n" not in summary


async def test_a_health_path_that_lies_is_not_believed(state_dir: Path) -> None:
    run = Run(state_dir, service({"load_s": 1.5, "early_health": True, "logs": True}))
    ending = asyncio.ensure_future(run.to_the_end())
    await until(lambda: "POST /v1/completions: 503 Service Unavailable" in (run.service["activity"] or ""))
    assert (run.service["state"], run.supervisor.snapshot()["ready"]) == ("PRIME", False)
    await ending
    assert run.states[-1] in ("STOPPED", "DRAINING", "SERVING")
    prime_s = next(stage["seconds"] for stage in run.service["stages"] if stage["state"] == "PRIME")
    assert prime_s > 1.0  # READY came after it could answer, however early it said so
    assert len(run.service["proof"]["first_token_ms"]) >= 7
    assert run.service["activity"] is None


async def test_who_answers_not_yet_for_longer_than_its_window_is_never_ready(state_dir: Path) -> None:
    how = {"load_s": LONG_S, "early_health": True, "logs": True}
    run = await Run(state_dir, service(how, window_s=1.0, quiet_s=0.5)).to_the_end()
    run.assert_never_ready("last seen: POST /v1/completions: 503 Service Unavailable")
    assert run.service["last_failure"]["state"] == "PRIME"
    assert run.service["proof"]["reason"] == run.service["last_failure"]["summary"]


async def test_first_requests_that_are_slow_are_over_before_ready(state_dir: Path) -> None:
    run = await Run(state_dir, service({"times_s": [0.8, 0.4]})).to_the_end()
    times = run.service["proof"]["first_token_ms"]
    assert times[0] > 800
    assert times[1] > 400
    assert max(times[-5:]) < 300
    assert run.service["first_token_ms"]["first"] < 300


async def test_a_server_that_never_becomes_steady_is_never_ready(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prime_module(), "STEADY_WITHIN_S", 0.5)
    run = await Run(state_dir, service({"every_s": [0.02, 0.15]})).to_the_end()
    run.assert_never_ready("first-token times are not steady")
    assert run.service["proof"]["reason"] == run.service["last_failure"]["summary"]
    assert len(run.service["proof"]["first_token_ms"]) >= 24


def prime_module() -> Any:
    return sys.modules[prime.__module__]


async def test_a_wrong_answer_is_never_ready_and_never_tried_again(state_dir: Path) -> None:
    run = await Run(state_dir, service({"wrong": True}, restart=MANY)).to_the_end()
    run.assert_never_ready("the canary's answer is wrong: expected 'Paris', got 'London.'")
    assert run.service["canary"] == {"ok": False, "expected": " Paris", "got": " London."}
    assert run.service["restarts"] == 0


async def test_empty_deltas_and_keep_alives_are_no_first_token(state_dir: Path) -> None:
    run = await Run(state_dir, service({"every_s": [0], "empty_s": 0.08})).to_the_end()
    assert min(run.service["proof"]["first_token_ms"]) >= 80


async def test_a_compile_on_the_third_probe_starts_the_proof_again(state_dir: Path, tmp_path: Path) -> None:
    run = await Run(state_dir, service({"compile_on": [3]}, cache_dir=tmp_path / "cache" / "e")).to_the_end()
    assert run.document["ready"]
    assert run.service["proof"]["compiles"]["triton"] == 1
    assert run.service["late_compiles"] == 0


async def test_a_compile_in_every_proof_is_never_ready(state_dir: Path, tmp_path: Path) -> None:
    how = {"compile_on": list(range(1, 200, 3))}
    run = await Run(state_dir, service(how, cache_dir=tmp_path / "cache" / "e")).to_the_end()
    run.assert_never_ready("something compiled during each of 4 proofs: triton")


async def test_a_batch_that_does_not_fit_is_told_and_the_rest_is_warm(state_dir: Path) -> None:
    run = await Run(state_dir, service({"most": 2}, keys=(1, 8))).to_the_end()
    proof = run.service["proof"]
    assert (proof["keys"], proof["keys_total"], proof["keys_left"]) == (2, 4, ["8x3", "4x3"])


async def test_a_second_boot_compiles_nothing_that_the_first_one_did(tmp_path: Path) -> None:
    cache, file = tmp_path / "cache" / "e", tmp_path / "history.json"
    compiled = []
    for boot in ("first", "second"):
        run = service({"needs": "add"}, cache_dir=cache, history=file, fingerprint="e")
        compiled.append((await Run(tmp_path / boot, run).to_the_end()).service["proof"]["compiles"]["log"])
    assert compiled == [1, 0]
    assert [boot.cache for boot in history.read(file)] == ["cold", "warm"]


async def test_a_stale_lock_keeps_nobody_waiting(state_dir: Path, tmp_path: Path) -> None:
    lock = tmp_path / "cache" / "e" / "torch-extensions" / "lock"
    lock.parent.mkdir(parents=True)
    lock.write_text("")
    run = await Run(state_dir, service({"wait_for": str(lock)}, cache_dir=tmp_path / "cache" / "e")).to_the_end()
    assert run.document["ready"]
    assert any("the stale lock" in event["text"] for event in run.events("log"))


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """A file system of its own, with these options."""
    if not can_mount():
        pytest.skip("this machine does not allow it")
    made: list[Path] = []

    def mount(*options: str) -> Path:
        folder = tmp_path / "disk"
        folder.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", ",".join(options), "warmup", folder], check=True)
        made.append(folder)
        return folder

    yield mount
    for folder in made:
        subprocess.run(["umount", "--lazy", folder], check=True)


async def assert_stopped_at_once(state_dir: Path, cache_dir: Path) -> None:
    run = await Run(state_dir, service({}, cache_dir=cache_dir, restart=MANY)).to_the_end()
    run.assert_never_ready("the cache folder cannot be used")
    assert run.service["restarts"] == 0
    assert run.service["last_failure"]["advice"]


async def test_a_cache_folder_that_cannot_be_written_stops_the_service_at_once(state_dir: Path) -> None:
    await assert_stopped_at_once(state_dir, Path("/sys/coexist-test/e"))


async def test_a_cache_folder_on_a_read_only_disk_stops_the_service_at_once(
    state_dir: Path, mounted: Callable[..., Path]
) -> None:
    await assert_stopped_at_once(state_dir, mounted("ro") / "cache" / "e")


async def test_a_full_disk_is_tried_again_and_then_given_up(state_dir: Path, mounted: Callable[..., Path]) -> None:
    once = {"restart": Restart(max_restarts=1, window="60s"), "backoff_first_s": 0.01}
    run = await Run(state_dir, service({}, cache_dir=mounted("size=1m") / "cache" / "e", **once)).to_the_end()
    run.assert_never_ready("the disk of the cache folder is full")
    assert run.service["restarts"] == 1


async def test_a_disk_that_a_compile_fills_is_told_by_its_own_last_words(
    state_dir: Path, mounted: Callable[..., Path]
) -> None:
    cache = mounted("size=66m") / "cache" / "e"
    how = {"needs": "add", "kernel_bytes": 80 * 1024**2}
    run = await Run(state_dir, service(how, cache_dir=cache)).to_the_end()
    run.assert_never_ready("No space left on device")


# Loads that stand still, and loads that only take long.


async def test_a_load_that_stands_still_ends_long_before_its_window_and_gives_everything_back(
    state_dir: Path, tmp_path: Path
) -> None:
    (tmp_path / "run").mkdir(mode=0o700)
    run = service({"wait_for": "/"}, window_s=LONG_S, quiet_s=0.5)  # it never even listens: nothing of it is used
    held = Reservation(ledger(tmp_path), Owner.current("tiny"), {"llm": Request(ports=(run.port,))}, Totals())
    assert [grant.service for grant in ledger(tmp_path).grants()] == ["llm"]
    async with tended(held) as noted:
        found = await Run(state_dir, run, noted, reserve=held.hold).to_the_end()
    found.assert_never_ready("its log, memory, files and processors stand still")
    assert "last seen: GET /health: nothing listens yet" in found.service["last_failure"]["summary"]
    assert found.states == ["INIT", "PRELOAD", "DRAINING", "FAILED"]
    assert found.service["proof"] is None
    assert not ledger(tmp_path).grants()


async def test_a_warm_up_that_stands_still_ends_long_before_its_window(state_dir: Path) -> None:
    how = {"slow_first": 1, "slow_s": LONG_S}
    found = await Run(state_dir, service(how, window_s=LONG_S, quiet_s=0.5)).to_the_end()
    found.assert_never_ready("its log, memory, files and processors stand still, last seen: key 1 of 1: 1x3")
    assert found.service["last_failure"]["state"] == "PRIME"


async def test_a_load_that_only_spins_ends_with_its_window(state_dir: Path) -> None:
    run = service({}, before="while :; do :; done", window_s=1.0, quiet_s=0.5, learns=False)
    found = await Run(state_dir, run).to_the_end()
    found.assert_never_ready("its processors work, but its log, memory and files stand still")
    assert "preload_window" in found.service["last_failure"]["advice"]


async def test_a_load_over_its_window_that_moves_on_becomes_ready(state_dir: Path) -> None:
    shards = "for shard in 1 2 3 4 5 6; do echo loading shard $shard; sleep 0.5; done"
    found = await Run(state_dir, service({}, before=shards, window_s=0.5, quiet_s=10.0)).to_the_end()
    assert found.error is None
    assert found.document["ready"]
    preload_s = next(stage["seconds"] for stage in found.service["stages"] if stage["state"] == "PRELOAD")
    assert preload_s > 2.0 > found.service["windows_s"]["PRELOAD"]


async def test_a_load_that_stands_still_once_is_started_again(state_dir: Path, tmp_path: Path) -> None:
    here = tmp_path / "here"
    once = f"if mkdir {here}; then sleep {LONG_S:.0f}; fi"
    found = await Run(state_dir, service({}, before=once, quiet_s=2.0, restart=MANY)).to_the_end()
    assert (found.document["ready"], found.service["restarts"]) == (True, 1)
    assert "no progress for" in found.service["last_failure"]["summary"]


# Compiles after READY.


@pytest_asyncio.fixture
async def asked() -> AsyncIterator[Callable[[int], Any]]:
    """Asks a server on this port for one streamed answer, as a user would."""
    async with aiohttp.ClientSession() as http:

        async def ask(port: int) -> None:
            body = {"model": "m", "prompt": "as users do", "max_tokens": 2, "stream": True}
            async with http.post(f"http://127.0.0.1:{port}/v1/completions", json=body) as answer:
                await answer.read()

        yield ask


@pytest.mark.parametrize("late_compile", ["warn", "drain"])
async def test_a_compile_after_ready_is_told_with_its_key_and_withdraws_readiness_where_that_is_wanted(
    state_dir: Path, tmp_path: Path, asked: Callable[[int], Any], late_compile: str
) -> None:
    how = {"compile_on": [40], "every_s": [0.02]}
    service_run = service(how, cache_dir=tmp_path / "cache" / "e", late_compile=late_compile)
    run = Run(state_dir, service_run, watch_s=0.05)
    await run.supervisor.start()
    try:
        await run.supervisor.wait_ready(30.0)
        with contextlib.suppress(aiohttp.ClientError):  # whoever asks while it drains is turned away
            for _ in range(40):
                await asked(service_run.port)
        await until(lambda: run.events("late_compile"))
        (told,) = run.events("late_compile")
        assert (told["channel"], told["key"], told["attempt"]) == ("triton", "KEY40/kernel", 1)
        if late_compile == "warn":
            assert (run.service["state"], run.service["last_failure"]) == ("SERVING", None)
            assert run.service["late_compiled"] == [{"channel": "triton", "key": "KEY40/kernel", "count": 1}]
            return
        await until(lambda: run.states[-1] == "SERVING" and run.service["attempt"] == 2)
        assert run.states == [*("INIT", "PRELOAD", "PRIME", "SERVING", "DRAINING"), *run.states[:4]]
        failure = run.service["last_failure"]
        assert failure["summary"] == "compiled after READY (1 in all): triton: 1 (KEY40/kernel)"
        assert (failure["class"], failure["culprit"], failure["attempt"]) == ("late_compile", "KEY40/kernel", 1)
    finally:
        await run.supervisor.close()


async def test_what_the_first_request_after_ready_compiles_is_told_with_its_key_before_anybody_believes_it(
    state_dir: Path, tmp_path: Path
) -> None:
    run = await Run(state_dir, service({"compile_on": [8]}, cache_dir=tmp_path / "cache" / "e")).to_the_end()
    assert run.document["ready"]
    assert (run.service["late_compiles"], run.service["late_compiled"]) == (
        1,
        [{"channel": "triton", "key": "KEY8/kernel", "count": 1}],
    )


async def test_a_server_that_hangs_with_its_first_request_after_ready_is_found_out_while_that_is_waited_for(
    state_dir: Path,
) -> None:
    def stop(supervisor: Supervisor) -> None:
        found = supervisor.snapshot()["services"][0]
        if found["state"] == "SERVING":
            os.kill(found["pid"], signal.SIGSTOP)

    run = await Run(state_dir, service({}), stop, watch_s=0.05, deep_s=0.2).to_the_end()
    assert (run.states[3:], run.service["first_token_ms"]["first"]) == (["SERVING", "DRAINING", "FAILED"], None)
    assert "no answer" in run.service["last_failure"]["summary"]
