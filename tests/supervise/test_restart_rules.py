"""When a new attempt may begin, what is cleaned before it, and what a stop waits for."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.supervise.conftest import carriers, service_of, state_of, supervise, tiny, until
from toolkit.config.models import Restart
from toolkit.errors import ToolkitError
from toolkit.supervise import attempt as attempts
from toolkit.supervise.lifecycle import Failure
from toolkit.supervise.outcome import Outcome
from toolkit.supervise.service import MemoryDifference, ServiceRun
from toolkit.supervise.state import read_events
from toolkit.warm.model import Clock

Start = Callable[..., Any]
GPUS = ({"uuid": "GPU-a", "index": 0, "budget_mib": 1},)


def texts(state_dir: Path) -> list[str]:
    return [event["text"] for event in read_events(state_dir / "events.jsonl") if event["kind"] == "log"]


async def test_what_was_left_behind_is_cleaned_before_the_next_attempt_and_told(
    state_dir: Path, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "kernel.part").touch()

    def diagnose(_: Outcome) -> Failure:
        return Failure("a stale lock", "retry_after_cleanup")

    supervisor = supervise(state_dir, tiny("dirty", "1:exit-early", cache_dir=cache), diagnose=diagnose)
    document = await supervisor.run("ready", 30.0)
    assert document["services"][0]["attempt"] == 2
    assert not (cache / "kernel.part").exists()
    assert f"cleaned before the next attempt: the half-written {cache / 'kernel.part'}" in texts(state_dir)


async def test_nothing_is_cleaned_after_another_failure(state_dir: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "kernel.part").touch()
    await supervise(state_dir, tiny("tidy", "1:exit-early", cache_dir=cache)).run("ready", 30.0)
    assert (cache / "kernel.part").exists()
    assert not any(text.startswith("cleaned") for text in texts(state_dir))


async def test_a_missing_module_is_not_tried_again(state_dir: Path) -> None:
    with pytest.raises(ToolkitError, match="No module named 'nosuch'") as caught:
        await supervise(state_dir, tiny("lacks", "import-nosuch")).run("ready", 30.0)
    (service,) = caught.value.details["status"]["services"]
    assert (service["attempt"], service["last_failure"]["verdict"]) == (1, "stop")


class Lock:
    """The start lock of a GPU, as a neighbour holds it."""

    def __init__(self) -> None:
        self.free = asyncio.Event()
        self.free.set()
        self.waits = 0

    @contextlib.asynccontextmanager
    async def __call__(self, uuids: Any, *, waiting: Callable[[int | None, float], None]) -> AsyncIterator[None]:
        if uuids and not self.free.is_set():
            self.waits += 1
            waiting(7, 0.1)
            await self.free.wait()
        yield


async def test_a_planned_stop_waits_for_a_start_on_its_gpu(running: Start, state_dir: Path) -> None:
    lock = Lock()
    supervisor = await running(tiny("gpu", gpus=GPUS), tiny("cpu"), gpu_starts=lock)
    await supervisor.wait_ready(30.0)
    lock.free.clear()
    supervisor.stop("gpu")
    await until(lambda: lock.waits == 1)
    assert (state_of(supervisor, "gpu"), len(carriers("gpu"))) == ("DRAINING", 1)
    supervisor.stop("cpu")
    await until(lambda: state_of(supervisor, "cpu") == "STOPPED")
    lock.free.set()
    await until(lambda: state_of(supervisor, "gpu") == "STOPPED")
    assert "waits while pid 7 starts on its GPU" in texts(state_dir)


async def test_a_stop_is_not_put_off_for_ever_and_never_when_it_is_forced(
    running: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = Lock()
    supervisor = await running(tiny("one", gpus=GPUS), tiny("two", gpus=GPUS), gpu_starts=lock)
    await supervisor.wait_ready(30.0)
    lock.free.clear()
    monkeypatch.setattr(attempts, "_STOP_LOCK_S", 0.05)
    supervisor.stop("one")
    await until(lambda: state_of(supervisor, "one") == "STOPPED")
    monkeypatch.setattr(attempts, "_STOP_LOCK_S", 600.0)
    supervisor.request_stop()
    await until(lambda: lock.waits == 2)
    supervisor.request_stop()
    await until(lambda: state_of(supervisor, "two") == "STOPPED")


async def test_a_crash_does_not_wait_for_the_lock_before_what_is_left_is_killed(running: Start) -> None:
    lock = Lock()
    supervisor = await running(tiny("crash", "setsid-grandchild", gpus=GPUS), gpu_starts=lock)
    await supervisor.wait_ready(30.0)
    lock.free.clear()
    os.kill(service_of(supervisor, "crash")["pid"], signal.SIGKILL)
    await until(lambda: not carriers("crash"))
    await until(lambda: lock.waits == 1)
    assert service_of(supervisor, "crash")["attempt"] == 2, "the restart waits for it"
    lock.free.set()
    await supervisor.wait_ready(30.0)


class Fast(Clock):
    """A clock on which a wait takes no time."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def now(self) -> float:
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        await asyncio.sleep(0)


@pytest.mark.parametrize("holder", ["jupyter (pid 77)", "unknown holder"])
async def test_past_the_limit_the_holder_of_the_missing_memory_is_named(state_dir: Path, holder: str) -> None:
    left = [999]

    def free_memory(_: ServiceRun) -> MemoryDifference:
        left[0] -= 1
        return MemoryDifference(f"2.0 GiB of memory is missing on GPU 0: {holder} holds 30.0 GiB", blocks=True)

    run = tiny("poor", gpus=GPUS, restart=Restart(max_restarts=0))
    with pytest.raises(ToolkitError, match=r"2\.0 GiB of memory is missing") as caught:
        await supervise(state_dir, run, free_memory=free_memory, clock=Fast()).run("ready")
    assert holder in caught.value.what
    assert 20 < 999 - left[0] < 50, "asked again and again for some seconds"
    assert carriers("poor") == []


async def test_a_restart_begins_when_the_memory_has_come_back(running: Start, state_dir: Path) -> None:
    held: list[bool] = []

    def free_memory(_: ServiceRun) -> MemoryDifference | None:
        assert carriers("back") == [], "the old process is gone before it is asked"
        return MemoryDifference("1.0 GiB is missing", blocks=True) if held and held.pop() else None

    supervisor = await running(tiny("back", gpus=GPUS), free_memory=free_memory)
    await supervisor.wait_ready(30.0)
    held.append(True)
    os.kill(service_of(supervisor, "back")["pid"], signal.SIGKILL)
    await until(lambda: service_of(supervisor, "back")["attempt"] == 2)
    await supervisor.wait_ready(30.0)
    assert "waits for GPU memory: 1.0 GiB is missing" in texts(state_dir)
    assert not held
