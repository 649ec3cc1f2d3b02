from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path

from toolkit.reserve.gpu_start import alone_on_gpu, gpu_start_lock, gpu_starts

Spawn = Callable[..., BaseProcess]


def test_one_gpu_is_started_on_by_one_at_a_time(tmp_path: Path) -> None:
    first, second = gpu_start_lock("GPU-a", tmp_path), gpu_start_lock("GPU-a", tmp_path)
    assert first.try_acquire()
    assert not second.try_acquire()
    assert second.holder() == os.getpid()
    assert gpu_start_lock("GPU-b", tmp_path).try_acquire()
    first.release()
    first.release()
    assert second.try_acquire()
    second.release()


async def test_a_waiter_is_told_who_holds_the_lock_and_gets_it_when_the_holder_dies(
    tmp_path: Path, spawn: Spawn
) -> None:
    def hold() -> None:
        lock = gpu_start_lock("GPU-a", tmp_path)
        assert lock.try_acquire()
        (tmp_path / "held").touch()
        time.sleep(600)

    child = spawn(hold)
    while not (tmp_path / "held").exists():
        await asyncio.sleep(0.01)
    holders: list[int | None] = []

    def waiting(pid: int | None, _seconds: float) -> None:
        holders.append(pid)
        child.kill()

    lock = gpu_start_lock("GPU-a", tmp_path)
    await lock.acquire(waiting, poll_s=0.01)
    assert holders[0] == child.pid
    lock.release()


async def test_two_services_of_one_process_take_turns_on_shared_gpus(tmp_path: Path) -> None:
    inside: list[str] = []

    async def start(name: str, uuids: list[str]) -> None:
        async with gpu_starts(uuids, tmp_path, poll_s=0.001):
            inside.append(name)
            await asyncio.sleep(0.005)
            assert inside == [name]
            inside.remove(name)

    await asyncio.gather(start("a", ["GPU-a", "GPU-b"]), start("b", ["GPU-b", "GPU-a"]), start("c", ["GPU-b"]))


async def test_a_cancelled_waiter_holds_nothing(tmp_path: Path) -> None:
    held = gpu_start_lock("GPU-b", tmp_path)
    assert held.try_acquire()

    async def start() -> None:
        async with gpu_starts(["GPU-a", "GPU-b"], tmp_path, poll_s=0.001):
            raise AssertionError("got in")

    task = asyncio.create_task(start())
    free = gpu_start_lock("GPU-a", tmp_path)
    while free.try_acquire():
        free.release()
        await asyncio.sleep(0.001)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert free.try_acquire()
    free.release()
    held.release()


def test_an_odd_uuid_cannot_leave_the_folder(tmp_path: Path) -> None:
    assert gpu_start_lock("MIG-../../x", tmp_path).path.parent == tmp_path


def test_who_only_wants_to_look_does_not_wait_for_a_start(tmp_path):
    lock = gpu_start_lock("GPU-a", tmp_path)
    with alone_on_gpu("GPU-a", tmp_path) as ours:
        assert ours
        assert not lock.try_acquire()
    assert lock.try_acquire()
    with alone_on_gpu("GPU-a", tmp_path) as ours:
        assert not ours
    assert lock.holder() is not None, "it is still the starter's"
    lock.release()
