"""``up`` on a terminal: a live table while it starts, then what was measured and what to try."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any

import click
from rich.live import Live
from rich.table import Table
from rich.text import Text

from toolkit import errors, workflow
from toolkit.assemble.launches import Stage
from toolkit.cli import again, aside, deadline, heartbeat, interruption, output, picture
from toolkit.config import load
from toolkit.errors import ManyFaultsError, NotReadyInTimeError, ToolkitError
from toolkit.home import Home
from toolkit.supervise import lean
from toolkit.supervise.supervisor import Supervisor
from toolkit.units import format_duration

INTERRUPTED = 130
REFRESH_PER_S = 10
POLL_S = 0.05
PROGRAM = Path(__file__).with_name("__main__.py")


class Screen:
    """What ``up`` shows on standard error: lines that stay, and on a terminal one table that changes."""

    def __init__(self) -> None:
        self._console = output.console(stderr=True)
        self._states: dict[str, str] = {}

    def say(self, text: str) -> None:
        """A line that stays."""
        self._console.print(Text(text), soft_wrap=True)

    @contextmanager
    def table(self, supervisor: Supervisor) -> Iterator[None]:
        """While the block runs, a terminal shows how far each service is."""
        if not self._console.is_terminal:
            yield
            return

        def drawn() -> Table:
            return picture.live(supervisor.snapshot(), supervisor.progress(), supervisor.activity())

        with Live(get_renderable=drawn, console=self._console, refresh_per_second=REFRESH_PER_S, transient=True):
            yield

    def show(self, supervisor: Supervisor) -> None:
        """Without a terminal: a line for each state that changed."""
        if self._console.is_terminal:
            return
        for service in supervisor.snapshot()["services"]:
            if self._states.get(service["name"]) != service["state"]:
                self._states[service["name"]] = service["state"]
                self.say(f"{service['name']}: {service['state']}")


def up(config: Path, exit_when_ready: bool, timeout_s: float | None, as_json: bool) -> int:
    """The exit code of ``coexist up`` in the foreground.

    Raises: click.Abort when it was stopped before it was ready; NotReadyInTimeError; ToolkitError.
    """
    screen, home = Screen(), Home.find()
    started_s = time.monotonic()
    deployment = load.deployment(config)
    if not exit_when_ready and again.runs(deployment, home):
        return again.up(config, deployment, home, timeout_s, as_json)
    doing = heartbeat.Doing()
    with deadline.raises_after(timeout_s, partial(_still_preparing, doing)), heartbeat.beating(doing.text, screen.say):
        stage = workflow.prepare(deployment, home, screen.say, doing.at)
    left_s = None if timeout_s is None else max(0.0, timeout_s - (time.monotonic() - started_s))
    lean.slim()
    with aside.stderr():
        return asyncio.run(_run(stage, screen, exit_when_ready, left_s, as_json))


def _still_preparing(doing: heartbeat.Doing, timeout_s: float) -> NotReadyInTimeError:
    what = f"not ready after {format_duration(timeout_s)}: it was still {doing.text() or 'reading its file'}"
    hint = "'coexist build' makes them beforehand; '--timeout' gives more time."
    return NotReadyInTimeError(what, hint=hint, code="not_ready")


async def _run(stage: Stage, screen: Screen, exit_when_ready: bool, timeout_s: float | None, as_json: bool) -> int:
    interrupts: list[int] = []
    async with workflow.started(stage, screen.show) as supervisor:
        for number in interruption.signals():
            asyncio.get_running_loop().add_signal_handler(number, _interrupt, supervisor, interrupts, number)
        with screen.table(supervisor):
            async with heartbeat.tended(partial(_starts, supervisor), screen.say):
                await supervisor.wait_ready(timeout_s)
        ready = not interrupts and supervisor.readiness()["ready"]
        if ready:
            await _told(supervisor, stage, exit_when_ready, as_json)
        if ready and not exit_when_ready:
            await supervisor.wait_stopped()
        screen.say("draining and stopping")
    if not ready:  # Ctrl-C, or 'coexist down' or 'stop' from elsewhere
        raise click.Abort
    return INTERRUPTED if signal.SIGINT in interrupts else 0


def _starts(supervisor: Supervisor) -> str | None:
    waiting = "; ".join(supervisor.reasons())
    return f"starting: {waiting}" if waiting else None


def _interrupt(supervisor: Supervisor, interrupts: list[int], number: int) -> None:
    interrupts.append(number)
    supervisor.request_stop()


async def _told(supervisor: Supervisor, stage: Stage, exit_when_ready: bool, as_json: bool) -> None:
    """Returns when the answer was written, or when all was stopped while nobody read it."""
    status = supervisor.snapshot()
    to_try = () if exit_when_ready else workflow.requests_to_try(stage, supervisor.address)
    writing = asyncio.create_task(asyncio.to_thread(_show_ready, status, to_try, as_json))
    stopped = asyncio.create_task(supervisor.wait_stopped())
    done, _ = await asyncio.wait({writing, stopped}, return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    for each in done:
        await each


def _show_ready(status: dict[str, Any], to_try: Sequence[str], as_json: bool) -> None:
    if as_json:
        output.document({**status, "changes": None})
        return
    _show(status)
    if to_try:
        output.line("ready. Try:")
        for text in to_try:
            output.line(f"  {text}")
        output.line("Ctrl-C drains and stops everything.")
    sys.stdout.flush()


def _show(status: dict[str, Any]) -> None:
    console = output.console()
    for part in (picture.timeline(status), picture.parts(status), picture.first_tokens(status)):
        if part.columns[1:]:
            console.print(part)
            console.print()


def detach(config: Path, timeout_s: float | None, as_json: bool) -> int:
    """Starts ``up`` in a session of its own and returns when it is ready; the exit code."""
    deployment, home = load.deployment(config), Home.find()
    if again.runs(deployment, home):
        return again.up(config, deployment, home, timeout_s, as_json)
    name = deployment.model.name
    folder = home.prepared().state(name)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    log = folder / "up.log"
    argv = [sys.executable, str(PROGRAM), "up", str(config.absolute()), "--json"]
    argv += [] if timeout_s is None else ["--timeout", f"{timeout_s}s"]
    with os.fdopen(os.memfd_create("answer"), "rb") as answer:  # its own, and there even when the disk is full
        with log.open("ab") as err:
            relay = _Relay(log)
            child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=answer, stderr=err, start_new_session=True)
        document = _answer_or_stop(child, answer, relay)
    if "error" in document:
        told = errors.of_document(document["error"])
        output.error(told if told.where or isinstance(told, ManyFaultsError) else told.at(str(log)), as_json)
        return child.wait()
    if as_json:
        output.document(document)
    else:
        _show(document)
        output.line(f"ready: {document['control']}/readyz")
        output.line(f"{name} runs in the background (pid {child.pid}). See 'coexist status'; 'coexist down' stops it.")
    return 0


class _Relay:
    """What is written to a file from now on, said on standard error line by line."""

    def __init__(self, log: Path) -> None:
        self.log, self._at_bytes = log, log.stat().st_size

    def say_new(self) -> None:
        with self.log.open("rb") as file:
            file.seek(self._at_bytes)
            whole, newline, _ = file.read().rpartition(b"\n")
        if newline:
            self._at_bytes += len(whole) + 1
            output.say(whole.decode(errors="replace"))


def _answer_or_stop(child: subprocess.Popen[bytes], answer: IO[bytes], relay: _Relay) -> dict[str, Any]:
    """The answer; a Ctrl-C before it comes stops what was started."""
    try:
        return _wait_for_answer(child, answer, relay)
    except KeyboardInterrupt:
        child.terminate()
        child.wait()
        raise


def _wait_for_answer(child: subprocess.Popen[bytes], answer: IO[bytes], relay: _Relay) -> dict[str, Any]:
    """The first document that the child prints: its status when ready, or its error."""
    while True:
        ended = child.poll() is not None
        written = os.pread(answer.fileno(), os.fstat(answer.fileno()).st_size, 0)  # the offset is the child's too
        line, newline, _ = written.partition(b"\n")
        relay.say_new()
        if newline:
            document: dict[str, Any] = json.loads(line)
            return document
        if ended:
            hint = "Its log may say why."
            raise ToolkitError("'up' ended without a word", str(relay.log), hint, code="detach_failed")
        time.sleep(POLL_S)
