"""Runs a program that is not ours as a step of a build: its output kept, watched for a hang, its whole tree ended."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from toolkit.build.steps import Command
from toolkit.errors import ToolkitError
from toolkit.units import format_duration

_TERM_GRACE_S = 3.0
_POLL_S = 0.2
_TAIL_BYTES = 65536
# What threads that only wait for something may use, and still count as idle.
_IDLE_CPU_S, _IDLE_CPU_SHARE, _IDLE_IO_BYTES = 0.1, 0.01, 1 << 20


@dataclass(frozen=True)
class Patience:
    """How long a step may do nothing: ``idle_s`` without output, files or work, ``silent_s`` with work alone.

    ``look_s``: how often its tree is looked at, which costs more than its output.
    """

    idle_s: float = 60.0
    silent_s: float = 7200.0
    look_s: float = 2.0


PATIENT = Patience()


@dataclass(frozen=True)
class Ended:
    """How a program ended: negative for a signal, as ``subprocess`` says it. ``output``: the end of its output."""

    status: int
    output: str
    seconds: float


class HungError(Exception):
    """The program did nothing for too long, and was ended."""

    def __init__(self, seconds: float, output: str) -> None:
        super().__init__(f"did nothing for {format_duration(seconds)}")
        self.seconds = seconds
        self.output = output


def run(
    command: Command,
    log_path: Path,
    cwd: Path,
    *,
    watched: Path,
    patience: Patience = PATIENT,
    clock: Callable[[], float] = time.monotonic,
    on_poll: Callable[[], None] = lambda: None,
) -> Ended:
    """How the command ended, its output appended to the log; files that grow in ``watched`` count as progress.

    Raises: ToolkitError when it cannot start; HungError. Whatever happens, nothing of its tree is left.
    """
    began_s, offset = clock(), log_path.stat().st_size if log_path.exists() else 0
    with log_path.open("ab") as log, _started(command, log.fileno(), cwd) as process:
        look = _Look(process.pid, log_path, watched, patience, clock)
        while process.poll() is None:
            with suppress(subprocess.TimeoutExpired):
                process.wait(_POLL_S)
            on_poll()
            if quiet_s := look.quiet_s():
                raise HungError(quiet_s, tail(log_path, offset))
    return Ended(process.returncode, tail(log_path, offset), clock() - began_s)


@dataclass(frozen=True)
class _Work:
    """What a tree has done so far: seconds of processor time, bytes read and written."""

    cpu_s: float
    io_bytes: int

    def is_more_than(self, other: _Work, elapsed_s: float) -> bool:
        """Whether it did more since then than threads that only wait do."""
        idle_cpu_s = max(_IDLE_CPU_S, _IDLE_CPU_SHARE * elapsed_s)
        return abs(self.cpu_s - other.cpu_s) >= idle_cpu_s or abs(self.io_bytes - other.io_bytes) >= _IDLE_IO_BYTES


class _Look:
    """Whether a tree still does something."""

    def __init__(self, pid: int, log_path: Path, watched: Path, patience: Patience, clock: Callable[[], float]) -> None:
        self._pid, self._log_path, self._watched = pid, log_path, watched
        self._patience, self._clock = patience, clock
        self._output, self._work = self._output_now(), _work(pid)
        self._spoke_s = self._worked_s = self._looked_s = clock()

    def quiet_s(self) -> float:
        """For how long it did nothing, once that is too long; 0 until then."""
        now_s = self._clock()
        if now_s - self._looked_s < self._patience.look_s:
            return 0.0
        self._looked_s = now_s
        output, work = self._output_now(), _work(self._pid)
        if output != self._output:
            self._spoke_s = now_s
        if output != self._output or work.is_more_than(self._work, now_s - self._worked_s):
            self._worked_s, self._work, self._output = now_s, work, output
        silent_s, idle_s = now_s - self._spoke_s, now_s - self._worked_s
        if idle_s > self._patience.idle_s:
            return idle_s
        return silent_s if silent_s > self._patience.silent_s else 0.0

    def _output_now(self) -> int:
        return sum(_size(path) for path in (self._log_path, *self._watched.rglob("*")))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _work(pid: int) -> _Work:
    done = [_work_of(process) for process in tree(pid)]
    return _Work(sum(each.cpu_s for each in done), sum(each.io_bytes for each in done))


def _work_of(process: psutil.Process) -> _Work:
    cpu_s, io_bytes = 0.0, 0
    with suppress(psutil.Error):
        times = process.cpu_times()
        cpu_s = float(times.user + times.system)
        io = process.io_counters()
        io_bytes = int(io.read_chars + io.write_chars)
    return _Work(cpu_s, io_bytes)


def tree(pid: int) -> list[psutil.Process]:
    """A process and all its descendants that are there now."""
    with suppress(psutil.Error):
        parent = psutil.Process(pid)
        return [parent, *parent.children(recursive=True)]
    return []


@contextmanager
def _started(command: Command, output: int, cwd: Path) -> Iterator[subprocess.Popen[bytes]]:
    try:
        process = subprocess.Popen(
            command.argv, env=dict(command.env), cwd=cwd, stdin=subprocess.DEVNULL,
            stdout=output, stderr=output, start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        raise ToolkitError(
            f"cannot start: {error.strerror}", command.argv[0], "Check 'environments:'.", code="cannot_start"
        ) from error
    try:
        yield process
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends a tree: also those that left its session, and those whose parent is gone already.

    A second Ctrl-C, or a second SIGTERM, cuts the grace short and leaves nothing either.
    """
    living = tree(process.pid)
    try:
        if process.poll() is None:
            _tell(process.pid, living, signal.SIGTERM)
            psutil.wait_procs(living, timeout=_TERM_GRACE_S)
    finally:
        _tell(process.pid, living, signal.SIGKILL)
        process.wait()


def _tell(session: int, living: list[psutil.Process], number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(session, number)
    for each in living:
        with suppress(psutil.Error):
            each.send_signal(number)


def tail(log_path: Path, offset: int = 0) -> str:
    """The end of a log, at most 64 KiB, from ``offset`` on."""
    with log_path.open("rb") as log:
        size = log.seek(0, os.SEEK_END)
        log.seek(max(offset, size - _TAIL_BYTES))
        return log.read().decode("utf-8", "replace")
