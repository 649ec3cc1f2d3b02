"""What is written down of each attempt that serves, so that another supervisor can take it over."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from toolkit import processes
from toolkit.files import publish
from toolkit.processes import PROC, Identity
from toolkit.supervise.groups import Groups
from toolkit.supervise.process import COOKIE_NAME
from toolkit.warm.compiles import Seen
from toolkit.warm.model import CanaryResult, Coverage, Proof


@dataclass(frozen=True)
class Record:
    """One serving attempt. ``token`` opens its doors, so the file is for its owner alone.

    ``spec`` and ``placed`` are of its ``ServiceRun``; ``group``: the control group of its deployment.
    """

    service: str
    attempt: int
    pid: int
    start_ticks: int
    boot_id: str
    cookie: str
    token: str | None
    log_start_bytes: int
    proof: Mapping[str, Any]
    spec: Mapping[str, str] = field(default_factory=dict)
    placed: Mapping[str, Any] = field(default_factory=dict)
    group: str | None = None

    @property
    def identity(self) -> Identity:
        return Identity(self.pid, self.start_ticks)

    @property
    def name(self) -> str:
        """Of the attempt: ``SERVICE.NUMBER``."""
        return f"{self.service}.{self.attempt}"

    def proven(self) -> Proof:
        """What PRIME measured in its time."""
        facts: dict[str, Any] = dict(self.proof)
        facts |= {name: tuple(facts[name]) for name in ("first_token_ms", "keys")}
        facts["canary"] = CanaryResult(**facts["canary"]) if facts["canary"] else None
        # Counted from its own start by a supervisor that is gone: what this one sees begins anew.
        facts |= {"compiles": Seen(), "coverage": Coverage(facts["keys"], len(facts["keys"]))}
        return Proof(**facts)

    def lives(self, proc: Path = PROC) -> bool:
        """True while the very process runs: by number, start time, and the cookie in its environment or its group."""
        if self.boot_id != processes.boot_id(proc) or processes.start_time(self.pid, proc) != self.start_ticks:
            return False
        groups = Groups.left(self.group, self.cookie.partition(".")[0])
        grouped = groups is not None and self.pid in groups.of(self.name).members()
        return grouped or processes.has_cookie(self.pid, f"{COOKIE_NAME}={self.cookie}", proc)


class Records:
    """The folder of records, one file a service."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, record: Record) -> None:
        """Leaves this record as the service's. Raises: OSError."""
        self.folder.mkdir(mode=0o700, exist_ok=True)
        publish(self._file(record.service), json.dumps(asdict(record)).encode(), durable=False)

    def remove(self, service: str) -> None:
        """The service has no record any more, and an empty folder is gone. Raises: OSError."""
        self._file(service).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.folder.rmdir()

    def remove_all(self, but: Collection[str] = ()) -> None:
        """No other service than these has a record any more. Raises: OSError."""
        for path in self.folder.glob("*.json"):
            if path.stem not in but:
                self.remove(path.stem)

    def living(self, proc: Path = PROC) -> dict[str, Record]:
        """Records whose process runs, by service. Files that say nothing sensible are passed over."""
        found = (_read(path) for path in sorted(self.folder.glob("*.json")))
        return {record.service: record for record in found if record and record.lives(proc)}

    def _file(self, service: str) -> Path:
        return self.folder / f"{service}.json"


def _read(path: Path) -> Record | None:
    try:
        record = Record(**json.loads(path.read_bytes()))
        record.proven()
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
    return record
