"""What a deployment is at before it has a supervisor: its plan, its check, its builds. Written down for ``status``.

Whoever prepares a start keeps ``starting.json`` in the state folder. It speaks only while the very process that wrote
it lives, so one that was killed leaves nothing behind that could lie.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from toolkit import processes
from toolkit.config.models import Deployment
from toolkit.errors import ToolkitError
from toolkit.files import json_object, publish
from toolkit.processes import Identity, ProcessId
from toolkit.runtimes.base import Launch
from toolkit.supervise import document
from toolkit.supervise.clock import Calendar
from toolkit.supervise.lifecycle import Instance
from toolkit.supervise.service import ServiceRun
from toolkit.units import format_duration

FILE = "starting.json"
_TEXTS = {
    "plan": "making its plan",
    "check": "checking whether all can live together here",
    "build": "building engine '{subject}'",
    "answers": "looking for the right answers of its models",
    "launch": "about to launch its services",
}


@dataclass(frozen=True)
class Step:
    """One thing that is done before services are launched; ``subject``: the engine of a build."""

    name: Literal["plan", "check", "build", "answers", "launch"]
    subject: str | None = None

    @property
    def text(self) -> str:
        """What is done, in words."""
        return _TEXTS[self.name].format(subject=self.subject)


At = Callable[[Step], None]


def untold(step: Step) -> None:
    """Hears which step comes now, and tells nobody."""


@dataclass(frozen=True)
class Start:
    """A start that goes on: by whom, at which step since when, and its services as status has them.

    ``since_s`` is of the monotonic clock, which all processes of one boot share; no record outlives the boot.
    """

    process: ProcessId
    step: Step
    since_s: float
    status: Mapping[str, Any]

    @property
    def identity(self) -> Identity:
        return Identity(self.process.pid, self.process.start_time)

    def seconds(self, now_s: float) -> float:
        """How long it is at this step."""
        return now_s - self.since_s

    def document(self, now_s: float) -> dict[str, Any]:
        """The status document, which says under ``starting`` what is done."""
        told = {"pid": self.process.pid, "step": self.step.name, "subject": self.step.subject}
        seconds = round(self.seconds(now_s), 1)
        return {**self.status, "starting": {**told, "seconds": seconds, "text": self.step.text}}

    def sentence(self, now_s: float) -> str:
        """What is done and for how long, in words."""
        return f"it is {self.step.text} (pid {self.process.pid}, for {format_duration(self.seconds(now_s))})"


def read(state_dir: Path) -> Start | None:
    """The start that goes on in this state folder; None: there is none, or who did it is gone."""
    found = json_object(state_dir / FILE) or {}
    try:
        start = Start(ProcessId(**found["process"]), Step(**found["step"]), float(found["since_s"]), found["status"])
        return start if start.step.text and processes.is_alive(start.process) else None
    except (TypeError, KeyError, ValueError):
        return None


def forget(state_dir: Path) -> None:
    """This process's record is gone; somebody else's stays."""
    start = read(state_dir)
    if start is None or start.process == processes.this_process():
        with contextlib.suppress(OSError):
            (state_dir / FILE).unlink(missing_ok=True)


def already(start: Start, state_dir: Path, now_s: float) -> ToolkitError:
    """What is told to whoever asks for what a start that goes on has not come to."""
    what = f"deployment '{state_dir.name}' is still starting: {start.sentence(now_s)}"
    hint = "'coexist status --watch' shows how far it is; 'coexist down' interrupts it."
    return ToolkitError(what, str(state_dir), hint, code="starting", step=start.document(now_s)["starting"])


@contextlib.contextmanager
def recorded(
    state_dir: Path, deployment: Deployment, told: At, now_s: Callable[[], float] = time.monotonic
) -> Iterator[At]:
    """What says which step comes now, to ``told`` and into the record, which stays where the block ends well.

    It raises ToolkitError where another process starts the deployment: nobody could see or interrupt a second one.
    """
    status = _status(deployment)

    def at(step: Step) -> None:
        _record(state_dir, step, now_s(), status)
        told(step)

    try:
        yield at
    except BaseException:
        forget(state_dir)
        raise


def _record(state_dir: Path, step: Step, now_s: float, status: Mapping[str, Any]) -> None:
    """A disk that takes no record holds up no start."""
    me, other = processes.this_process(), read(state_dir)
    if other is not None and other.process != me:
        raise already(other, state_dir, now_s)
    found = {"process": asdict(me), "step": asdict(step), "since_s": now_s, "status": status}
    with contextlib.suppress(OSError):
        state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        publish(state_dir / FILE, json.dumps(found).encode(), durable=False)


def _status(deployment: Deployment) -> dict[str, Any]:
    """The status document of services that nothing was done for yet: CPUs, and ports that nobody wrote, are unknown."""
    runs = [ServiceRun(name, each.runtime, _never, each.port or 0) for name, each in deployment.services.items()]
    instances = {run.name: Instance(run.name) for run in runs}
    found = document.status(deployment.name, runs, instances, now_s=0.0, calendar=Calendar(0.0))
    return {**found, "services": [{**row, "port": row["port"] or None, "cpus": None} for row in found["services"]]}


def _never(attempt: int) -> Launch:
    raise AssertionError(f"attempt {attempt} of a service that is only shown")
