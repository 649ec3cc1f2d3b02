"""The state folder of a deployment: one supervisor at a time, a status that is whole, events that only grow."""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import filelock

from toolkit import processes
from toolkit.errors import ToolkitError
from toolkit.files import json_object, parsed_object, publish
from toolkit.supervise import logs
from toolkit.supervise.records import Record, Records

MAX_EVENTS_BYTES = 16 * 1024**2


@dataclass(frozen=True)
class Owner:
    """The supervisor that holds, or last held, a state folder; ``cookie`` marks the processes it started.

    ``group``: the control group they are in. ``keeps``: those that serve are meant to outlive it.
    """

    deployment: str
    pid: int
    start_ticks: int
    cookie: str
    control_port: int | None = None
    group: str | None = None
    keeps: bool = False

    @property
    def alive(self) -> bool:
        return processes.start_time(self.pid) == self.start_ticks


class StateFolder:
    """Paths and files of one deployment's state. Readers need no lock."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.logs = path / "logs"
        self.status_file = path / "status.json"
        self.events_file = path / "events.jsonl"
        self.owner_file = path / "supervisor.json"
        self.socket = path / "control.sock"
        self.records = Records(path / "attempts")
        self._lock = filelock.FileLock(path / "lock", timeout=0)
        self._events: int | None = None

    def log(self, service: str) -> Path:
        """The log file of a service."""
        return self.logs / f"{service}.log"

    def open(self, deployment: str) -> Owner | None:
        """Takes the folder; the owner that died without tidying up, or None.

        Raises: ToolkitError when another supervisor runs in it.
        """
        self.logs.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path.chmod(0o700)
        try:
            self._lock.acquire()
        except filelock.Timeout:
            raise self._taken(deployment) from None
        for half_written in (*self.path.glob(".*.tmp"), *self.records.folder.glob(".*.tmp")):
            half_written.unlink(missing_ok=True)  # by a supervisor that was killed
        previous = self.owner()
        self._events = _open_events(self.events_file)
        return previous

    def refuse_running(self, deployment: str) -> None:
        """Raises ToolkitError when another supervisor runs in it; an early answer, ``open`` gives the sure one."""
        if self.is_running():
            raise self._taken(deployment)

    def _taken(self, deployment: str) -> ToolkitError:
        owner = self.owner()
        pid = owner.pid if owner else None
        return ToolkitError(
            f"deployment '{deployment}' already runs" + (f" (supervisor pid {pid})" if pid else ""),
            str(self.path),
            "See 'coexist status'; 'coexist down' stops it.",
            code="already_running",
            pid=pid,
        )

    def close(self, heir_of: Owner | None = None) -> None:
        """Removes what speaks of a running supervisor, and lets the folder go.

        ``heir_of``: whose processes still run, since they could not be taken over; that is what is left written.
        """
        self.socket.unlink(missing_ok=True)
        if heir_of is None:
            self.owner_file.unlink(missing_ok=True)
        else:
            self.write_owner(heir_of)
        if self._events is not None:
            os.close(self._events)
            self._events = None
        self._lock.release()

    def owner(self) -> Owner | None:
        """Who holds or last held the folder; None when it was left tidily. A damaged file: as living attempts tell."""
        document = json_object(self.owner_file)
        if document is not None:
            with contextlib.suppress(TypeError):
                return Owner(**document)
        return self._owner_by_records() if self.owner_file.exists() else None

    def _owner_by_records(self) -> Owner | None:
        """A dead one, with the cookie and the group that what it left behind has."""
        for record in self.records.living().values():
            return Owner(self.path.name, 0, 0, record.cookie.partition(".")[0], group=record.group, keeps=True)
        return None

    def is_running(self) -> bool:
        """Whether the supervisor that holds the folder lives."""
        owner = self.owner()
        return owner is not None and owner.alive

    def left(self) -> dict[str, Record]:
        """Attempts that serve although their supervisor died, by service; none while one lives or tidied up."""
        owner = self.owner()
        return self.records.living() if owner is not None and owner.keeps and not owner.alive else {}

    def write_owner(self, owner: Owner) -> None:
        _write_json(self.owner_file, asdict(owner))

    def write_status(self, document: Mapping[str, Any]) -> None:
        _write_json(self.status_file, document)

    def status(self) -> dict[str, Any] | None:
        """The last status that was written, or None."""
        return json_object(self.status_file)

    def append_event(self, document: Mapping[str, Any]) -> None:
        """Adds one event; a single write, so that a crash tears at most the last line. Raises: OSError."""
        if self._events is None:
            return
        line = json.dumps(document, separators=(",", ":")).encode() + b"\n"
        written = os.write(self._events, line)
        if written < len(line):  # the disk became full in the middle
            os.ftruncate(self._events, os.fstat(self._events).st_size - written)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def last_start_bytes(self, service: str) -> int:
        """Where the last attempt begins in the log of the service; 0 where that is not known."""
        started = [each for each in self.events() if each.get("kind") == "spawned" and each.get("service") == service]
        start = int(started[-1].get("log_start_bytes", 0)) if started else 0
        return start if start <= logs.LogFile(self.log(service)).end() else 0

    def events(self) -> Iterator[dict[str, Any]]:
        """All events, oldest first, without torn lines."""
        return read_events(self.events_file)


def read_events(path: Path) -> Iterator[dict[str, Any]]:
    """Events of a file, oldest first; a line that a crash tore is passed over."""
    try:
        file = path.open(errors="replace")
    except OSError:
        return
    with file:
        yield from (event for line in file if (event := parsed_object(line)) is not None)


def _open_events(path: Path) -> int:
    if path.exists() and path.stat().st_size > MAX_EVENTS_BYTES:
        path.replace(path.with_name("events.1.jsonl"))
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    size = os.fstat(descriptor).st_size
    if size and os.pread(descriptor, 1, size - 1) != b"\n":
        os.write(descriptor, b"\n")  # a crash tore the last line: it must not swallow the next one
    return descriptor


def _write_json(path: Path, document: Mapping[str, Any]) -> None:
    publish(path, json.dumps(document).encode(), durable=False)  # it is written often, and tells of this boot only
