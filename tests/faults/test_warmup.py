"""Servers that would look ready too early, as real processes: none is called READY before it is, and each is told why.

Times are scaled down; what is checked is order and invariants. Compiles after READY: ``supervise/test_compile_watch``.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest

from tests.ports import free_port
from tests.supervise.conftest import supervise
from toolkit.config.models import Restart
from toolkit.errors import ToolkitError
from toolkit.runtimes.base import CanaryCheck, Generation, HttpProbe, Launch, Probes
from toolkit.supervise import history
from toolkit.supervise.service import ServiceRun
from toolkit.supervise.supervisor import Supervisor
from toolkit.warm import prime

SERVER = Path(__file__).with_name("warm_server.py")
STEADY = {"every_s": [0.04]}  # far above what a busy machine adds


def warmup(*prompts: int) -> tuple[HttpProbe, ...]:
    """A request of so many prompts each."""
    bodies: list[Any] = [["a b c"] * count if count > 1 else "a b c" for count in prompts]
    return tuple(HttpProbe("/v1/completions", "POST", {"model": "m", "prompt": body}) for body in bodies)


def service(how: dict[str, Any], *, window_s: float = 20.0, keys: tuple[int, ...] = (1,), **changes: Any) -> ServiceRun:
    port = free_port()
    probes = Probes(
        loaded=HttpProbe("/health", timeout_s=1.0),
        warmup=warmup(*keys),
        canary=CanaryCheck("The capital of France is", 8, expected_text=" Paris"),
        generation=Generation("completions", "/v1/completions", "m", 64),
    )
    cache = changes.get("cache_dir")
    env = {"STANDIN": json.dumps({**STEADY, **how})} | ({"TRITON_CACHE_DIR": str(cache / "triton")} if cache else {})

    def launch(_: int) -> Launch:
        return Launch((sys.executable, "-S", str(SERVER), str(port)), env, probes, preload_window_s=window_s)

    facts: dict[str, Any] = {"grace_s": 1.0, "restart": Restart(max_restarts=0, window="60s"), **changes}
    return ServiceRun("llm", "command", launch, port, **facts)


class Run:
    """One run of a service: its states in order, and how it ended."""

    def __init__(self, state_dir: Path, run: ServiceRun, **changes: Any) -> None:
        self.states: list[str] = []
        self.supervisor = supervise(state_dir, run, on_change=self._note, **changes)
        self.document: dict[str, Any] = {}
        self.error: ToolkitError | None = None

    def _note(self, supervisor: Supervisor) -> None:
        state = supervisor.snapshot()["services"][0]["state"]
        if not self.states or self.states[-1] != state:
            self.states.append(state)

    async def to_the_end(self) -> Run:
        try:
            self.document = await self.supervisor.run("ready", 60.0)
        except ToolkitError as error:
            self.error, self.document = error, error.details["status"]
        return self

    @property
    def service(self) -> dict[str, Any]:
        found: dict[str, Any] = self.document["services"][0]
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
    run = await Run(state_dir, service({"load_s": 1.5, "early_health": True})).to_the_end()
    assert run.states[-1] in ("STOPPED", "DRAINING", "SERVING")
    prime_s = next(stage["seconds"] for stage in run.service["stages"] if stage["state"] == "PRIME")
    assert prime_s > 1.0  # READY came after it could answer, however early it said so
    assert len(run.service["proof"]["first_token_ms"]) >= 7


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
    many = Restart(max_restarts=5, window="60s")
    run = await Run(state_dir, service({"wrong": True}, restart=many)).to_the_end()
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


async def test_a_cache_folder_that_cannot_be_written_stops_the_service_at_once(state_dir: Path) -> None:
    many = Restart(max_restarts=5, window="60s")
    run = await Run(state_dir, service({}, cache_dir=Path("/sys/coexist-test/e"), restart=many)).to_the_end()
    run.assert_never_ready("the cache folder cannot be used")
    assert run.service["restarts"] == 0
    assert run.service["last_failure"]["advice"]


async def test_a_full_disk_is_tried_again_and_then_given_up(state_dir: Path, tmp_path: Path, monkeypatch: Any) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(1, 1, 0))
    once = {"restart": Restart(max_restarts=1, window="60s"), "backoff_first_s": 0.01}
    run = await Run(state_dir, service({}, cache_dir=tmp_path / "cache" / "e", **once)).to_the_end()
    run.assert_never_ready("the disk of the cache folder is full")
    assert run.service["restarts"] == 1


async def test_a_load_that_makes_no_progress_ends_with_its_window_and_gives_everything_back(state_dir: Path) -> None:
    given_back: list[str] = []

    def reserve(run: ServiceRun) -> Any:
        return lambda: given_back.append(run.name)

    how = {"wait_for": "/"}  # it never even listens: what was reserved for it is never used
    run = await Run(state_dir, service(how, window_s=0.4), reserve=reserve).to_the_end()
    run.assert_never_ready("no progress for")
    assert run.states == ["INIT", "PRELOAD", "DRAINING", "FAILED"]
    assert given_back == ["llm"]
    assert run.service["proof"] is None
