"""Runs the steps of a build as child processes: progress relayed, output kept, nothing left behind."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from toolkit.build.full_disk import full_disk_error, is_full_disk
from toolkit.errors import ToolkitError
from toolkit.files import parsed_object
from toolkit.units import format_duration

Report = Callable[[str], None]
_TERM_GRACE_S = 3.0
_LOG_TAIL_LINES = 12


@dataclass(frozen=True)
class Command:
    """A step as it is started: the complete argv, and the complete environment."""

    argv: tuple[str, ...]
    env: Mapping[str, str]


class Progress:
    """Turns events of children into lines for a person, and remembers how long each step took.

    ``last_s``: seconds by step the last time.
    """

    def __init__(self, report: Report, last_s: Mapping[str, float]) -> None:
        self._report = report
        self._last_s = last_s
        self.seconds: dict[str, float] = {}

    def event(self, event: Mapping[str, Any]) -> None:
        step = event.get("step")
        if not isinstance(step, str):
            return
        if event.get("state") == "begin":
            last_s = self._last_s.get(step)
            self._report(f"{step} …" + (f" (took {format_duration(last_s)} last time)" if last_s is not None else ""))
        elif isinstance(event.get("seconds"), (int, float)):
            self.seconds[step] = float(event["seconds"])
            self._report(f"{step}: {format_duration(self.seconds[step])}")


@dataclass
class _Child:
    command: Command
    process: subprocess.Popen[bytes]
    events: IO[bytes]
    rest: bytes = b""
    last: dict[str, Any] = field(default_factory=dict)

    def take(self, chunk: bytes) -> list[dict[str, Any]]:
        """The whole events that have come; the last result or error is kept."""
        *lines, self.rest = (self.rest + chunk).split(b"\n")
        events = [event for event in map(parsed_object, lines) if event is not None]
        for event in events:
            self.last.update({key: event[key] for key in ("result", "error") if key in event})
        return events


def run_together(commands: Sequence[Command], progress: Progress, log_path: Path) -> list[dict[str, Any]]:
    """The result of each command, all running at the same time; their output is appended to the log.

    Raises: ToolkitError when one fails: the others are stopped then, as they are when this process is interrupted.
    """
    with ExitStack() as stack:
        log = stack.enter_context(log_path.open("ab"))
        children: list[_Child] = []
        stack.callback(_stop_all, children)
        for command in commands:
            children.append(_start(command, log))
            stack.callback(children[-1].events.close)
        _relay(children, progress, log_path)
    return [child.last.get("result", {}) for child in children]


def _start(command: Command, log: IO[bytes]) -> _Child:
    reader, writer = os.pipe()
    try:
        process = subprocess.Popen(
            (*command.argv, "--progress-fd", str(writer)),
            env=dict(command.env), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            pass_fds=(writer,), start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        os.close(reader)
        raise ToolkitError(f"cannot start: {error.strerror}", command.argv[0], "Check 'environments:'.") from error
    finally:
        os.close(writer)
    return _Child(command, process, os.fdopen(reader, "rb", buffering=0))


def _relay(children: Sequence[_Child], progress: Progress, log_path: Path) -> None:
    """Reads events until every child has ended; a child's events end with it."""
    with selectors.DefaultSelector() as selector:
        for child in children:
            selector.register(child.events, selectors.EVENT_READ, child)
        while selector.get_map():
            for key, _ in selector.select():
                child = key.data
                chunk = os.read(child.events.fileno(), 65536)
                for event in child.take(chunk):
                    progress.event(event)
                if not chunk:
                    selector.unregister(child.events)
                    _check_ended(child, log_path)


def _check_ended(child: _Child, log_path: Path) -> None:
    status = child.process.wait()
    if status == 0 and "error" not in child.last:
        return
    told = child.last.get("error")
    if isinstance(told, dict):
        details = {str(key): value for key, value in dict(told.get("details") or {}).items()}
        raise ToolkitError(told["what"], told.get("where"), told.get("hint"), code=told.get("code", "error"), **details)
    raise unexplained_failure(status, log_path)


def unexplained_failure(status: int, log_path: Path) -> ToolkitError:
    """What a person is told of a step that ended without saying why, from the last lines of the log."""
    tail = _tail(log_path)
    if is_full_disk(status, "\n".join(tail)):
        return full_disk_error(log_path.parent)
    if status == -signal.SIGKILL:
        why, hint = "was killed", "Was there enough memory? 'dmesg' names processes killed for it."
    elif status < 0:
        why, hint = f"crashed ({signal.Signals(-status).name})", "Another C++ compiler (CXX=g++) may help."
    else:
        why, hint = f"failed with exit status {status}", "The log says more."
    last = next((line for line in reversed(tail) if line), "no output")
    return ToolkitError(f"a step of the build {why}: {last}", str(log_path), hint, code="build_failed", log_tail=tail)


def _tail(log_path: Path) -> list[str]:
    with log_path.open("rb") as log:
        log.seek(0, os.SEEK_END)
        log.seek(max(0, log.tell() - 16384))
        lines = log.read().decode("utf-8", "replace").splitlines()
    return [line.rstrip() for line in lines[-_LOG_TAIL_LINES:]]


def _stop_all(children: Sequence[_Child]) -> None:
    """Ends what still runs, each child with everything in its session: compilers and workers too."""
    running = [child.process for child in children if child.process.poll() is None]
    for process in running:
        _signal(process, signal.SIGTERM)
    deadline_s = time.monotonic() + _TERM_GRACE_S
    for process in running:
        with suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, deadline_s - time.monotonic()))
    for child in children:
        _signal(child.process, signal.SIGKILL)
        child.process.wait()


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
