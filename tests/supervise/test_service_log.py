from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.supervise.conftest import service_of, state_of, tiny, until
from toolkit.runtimes.base import Launch
from toolkit.supervise import log_reader, log_times, logs, service_log
from toolkit.supervise.failures import plain
from toolkit.supervise.log_reader import Entry
from toolkit.supervise.outcome import Outcome
from toolkit.supervise.service import ServiceRun
from toolkit.supervise.service_log import ServiceLog

Start = Callable[..., Any]


@pytest.fixture
def clock() -> Iterator[int]:
    return count(1000)


@pytest.fixture
def log(tmp_path: Path, clock: Iterator[int]) -> ServiceLog:
    return ServiceLog(tmp_path / "llm.log", lambda: float(next(clock)))


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(text)


def rank(log: ServiceLog, number: int) -> Path:
    return logs.rank_folder(log.path) / "1" / f"rank.{number}" / "stdout"


def texts(entries: Iterator[Entry]) -> list[tuple[str, str | None]]:
    return [(entry.text, entry.rank) for entry in entries]


def test_only_what_grew_is_marked(log: ServiceLog) -> None:
    log.look()
    assert not log_times.path_of(log.path).exists()
    write(log.path, "12345\n")
    log.look()
    log.look()
    assert log_times.read(log.path).marks == {"": ((6, 1000.0),)}


def test_stored_lines_of_several_logs_come_in_order_of_time(tmp_path: Path, clock: Iterator[int]) -> None:
    llm, embed = (ServiceLog(tmp_path / f"{name}.log", lambda: float(next(clock))) for name in ("llm", "embed"))
    for turn in range(3):
        for each in (llm, embed):
            write(each.path, f"{each.path.stem} {turn}\n")
            each.look()
    found = log_reader.read({"llm": llm.path, "embed": embed.path})
    assert [entry.text for entry in found] == ["llm 0", "embed 0", "llm 1", "embed 1", "llm 2", "embed 2"]


def test_the_current_run_is_shown_and_earlier_ones_on_request(log: ServiceLog) -> None:
    write(log.path, "of the first run\n")
    log.begin_run()
    log.begin_attempt(rank_logs=False)
    write(log.path, "of the second run\n")
    log.look()
    assert texts(log_reader.read({"llm": log.path})) == [("of the second run", None)]
    assert len(list(log_reader.read({"llm": log.path}, all_runs=True))) == 2


def test_each_attempt_has_a_folder_for_its_ranks_and_the_one_before_is_kept(log: ServiceLog) -> None:
    log.begin_run()
    for attempt in (1, 2, 3):
        log.begin_attempt(rank_logs=True)
        write(rank(log, 0), f"attempt {attempt}\n")
        log.look()
    assert texts(log_reader.read({"llm": log.path})) == [("attempt 3", "0")]
    everything = texts(log_reader.read({"llm": log.path}, all_runs=True))
    assert sorted(everything) == [("attempt 2", "0"), ("attempt 3", "0")]
    log.begin_run()
    assert texts(log_reader.read({"llm": log.path})) == []


def test_the_earliest_fatal_line_over_all_ranks_comes_first_in_the_view(log: ServiceLog) -> None:
    view = log.begin_attempt(rank_logs=True)
    write(rank(log, 0), "up\n")
    write(rank(log, 1), "up\nRuntimeError: CUDA error\n")
    log.look()
    write(rank(log, 0), "connection reset by rank 1\n")
    log.look()
    lines = b"".join(view.pieces()).decode().splitlines()
    assert lines.index("RuntimeError: CUDA error") < lines.index("connection reset by rank 1")


def test_long_logs_are_rotated_of_ranks_too(log: ServiceLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "MAX_BYTES", 10_000)
    log.begin_attempt(rank_logs=True)
    for path in (log.path, rank(log, 0)):
        write(path, "x\n" * 10_000)
    log.look()
    assert logs.disk_bytes(log.path) <= 8192
    assert logs.disk_bytes(rank(log, 0)) <= 8192
    assert len(list(log_reader.read({"llm": log.path}))) == 20_000


def test_the_last_lines_stay_in_memory_within_bounds(log: ServiceLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_log, "RECENT_BYTES", 100)
    write(log.path, "of the attempt before\n")
    view = log.begin_attempt(rank_logs=True)
    for turn in range(50):
        write(log.path, f"own {turn}\n")
        write(rank(log, 0), f"rank {turn}\n")
        log.look()
    log.path.unlink()
    rank(log, 0).unlink()
    log.look()
    kept = b"".join(view.pieces()).decode()
    assert kept.endswith("rank 49\n")
    assert "own 49\n" in kept
    assert "before" not in kept
    assert len(kept) <= 200


def test_an_attempt_that_runs_already_is_viewed_from_where_it_began(log: ServiceLog) -> None:
    write(log.path, "old\nours\n")
    assert log.continue_attempt(4).tail() == "ours\n"


def test_a_folder_that_cannot_be_made_is_told(log: ServiceLog) -> None:
    logs.rank_folder(log.path).write_text("a file")
    with pytest.raises(FileExistsError):
        log.begin_attempt(rank_logs=True)


def test_a_disk_that_refuses_marks_stops_nothing(log: ServiceLog, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(log_times, "add", full)
    write(log.path, "x\n")
    log.begin_run()
    log.look()
    assert log.begin_attempt(rank_logs=False).start_bytes == 2


@pytest.mark.parametrize(
    ("file", "told"),
    [
        ("1/rank.3/stdout", "3"),
        ("rank12.log", "12"),
        ("out_rank_0", "0"),
        ("none/attempt_0/5/stdout.log", "5"),
        ("worker.txt", "worker.txt"),
    ],
)
def test_the_number_of_a_rank_is_in_the_name_of_its_file(file: str, told: str) -> None:
    assert log_reader.rank_of(file) == told


# Following.


class Running:
    """``turns`` times it runs; something is done at each."""

    def __init__(self, *turns: Callable[[], None]) -> None:
        self._turns = list(turns)

    def __call__(self) -> bool:
        if not self._turns:
            return False
        self._turns.pop(0)()
        return True


def test_following_merges_services_and_ranks_as_they_come(log: ServiceLog) -> None:
    log.begin_run()
    write(log.path, "stored\n")
    followed = log_reader.follow(
        {"llm": log.path},
        Running(
            lambda: write(log.path, "half "),
            lambda: write(log.path, "a line\n"),
            lambda: (log.begin_attempt(rank_logs=True), write(rank(log, 0), "hello\n"), None)[-1],
            lambda: (log.begin_attempt(rank_logs=True), write(rank(log, 0), "hello again, longer\n"), None)[-1],
            lambda: write(log.path, "no end"),
        ),
        sleep=lambda _: None,
    )
    assert texts(followed) == [
        ("stored", None),
        ("half a line", None),
        ("hello", "0"),
        ("hello again, longer", "0"),
        ("no end", None),
    ]


def test_following_survives_rotation(log: ServiceLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "MAX_BYTES", 5_000)
    numbers = iter(range(100_000))

    def more() -> None:
        write(log.path, "".join(f"{next(numbers):06d}\n" for _ in range(1000)))
        log.look()

    followed = log_reader.follow({"llm": log.path}, Running(*[more] * 5), sleep=lambda _: None)
    assert [int(entry.text) for entry in followed] == list(range(5000))


# With a supervisor.

RANKS = """
import os, pathlib, subprocess, sys
folder = pathlib.Path(sys.argv[1])
for rank in range(2):
    file = folder / "1" / f"rank.{rank}" / "stdout"
    file.parent.mkdir(parents=True)
    file.write_text(f"rank {rank} of {os.getpid()}\\n")
os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
"""


def with_ranks(run: ServiceRun, folder: Path) -> ServiceRun:
    """Its launcher writes a file for each of two ranks first."""

    def launch(attempt: int) -> Launch:
        plain = run.launch(attempt)
        argv = (plain.argv[0], "-I", "-S", "-c", RANKS, str(folder), *plain.argv[1:])
        return replace(plain, argv=argv, rank_logs=True)

    return replace(run, launch=launch)


async def test_a_launch_with_rank_logs_gets_a_fresh_folder_each_time(running: Start, state_dir: Path) -> None:
    supervisor = await running(with_ranks(tiny("llm"), state_dir / "logs" / "llm"))
    await supervisor.wait_ready(20.0)
    first = service_of(supervisor, "llm")["pid"]
    os.kill(first, signal.SIGKILL)
    await until(lambda: service_of(supervisor, "llm")["attempt"] == 2 and state_of(supervisor, "llm") == "SERVING")
    found = texts(log_reader.read({"llm": state_dir / "logs" / "llm.log"}))
    second = service_of(supervisor, "llm")["pid"]
    assert (f"rank 1 of {second}", "1") in found
    assert (f"rank 1 of {first}", "1") not in found


async def test_diagnosis_reads_the_files_of_the_ranks(running: Start, state_dir: Path) -> None:
    read: list[str] = []

    def diagnose(outcome: Outcome) -> Any:
        read.append(b"".join(outcome.log.pieces()).decode())
        return plain(outcome)

    supervisor = await running(with_ranks(tiny("llm"), state_dir / "logs" / "llm"), diagnose=diagnose)
    await supervisor.wait_ready(20.0)
    os.kill(service_of(supervisor, "llm")["pid"], signal.SIGKILL)
    await until(lambda: read)
    assert "rank 0 of" in read[0]
    assert "tiny server" in read[0]


async def test_a_flooding_log_is_kept_in_bounds_and_blocks_nobody(
    running: Start, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "MAX_BYTES", 100_000)
    supervisor = await running(tiny("flood", "flood"))
    await supervisor.wait_ready(20.0)
    path = state_dir / "logs" / "flood.log"
    await until(lambda: logs.disk_bytes(path) <= 100_000)
    assert state_of(supervisor, "flood") == "SERVING"


async def test_a_log_that_was_removed_does_not_hide_why_it_ended(running: Start, state_dir: Path) -> None:
    supervisor = await running(tiny("gone"))
    await supervisor.wait_ready(20.0)
    path = state_dir / "logs" / "gone.log"
    await asyncio.to_thread(supervisor._logs["gone"].look)
    path.unlink()
    os.kill(service_of(supervisor, "gone")["pid"], signal.SIGKILL)
    await until(lambda: service_of(supervisor, "gone")["last_failure"])
    assert "tiny server" in (service_of(supervisor, "gone")["last_failure"]["summary"])
