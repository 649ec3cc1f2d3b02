"""One deployment and its supervisor, seen and touched from outside only."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
from collections import Counter
from dataclasses import dataclass, field
from functools import reduce
from operator import and_
from pathlib import Path
from typing import Any

from tests.cli.deployments import until
from tests.faults import keeper
from tests.faults.keeper import Job, Keeper
from tests.faults.services import NAMES
from tests.ports import free_ports
from tests.supervise.conftest import answer
from toolkit import processes
from toolkit.errors import ToolkitError
from toolkit.supervise import client
from toolkit.supervise.groups import Groups
from toolkit.supervise.state import Owner, StateFolder, read_events

_choosing = threading.Lock()
_chosen: set[int] = set()


def own_ports() -> dict[str, int]:
    """Free ports by service, which no other scene of this run has had."""
    with _choosing:
        while _chosen & set(found := free_ports(len(NAMES))):
            pass
        _chosen.update(found)
    return dict(zip(NAMES, found, strict=True))


@dataclass
class Scene:
    """``fault``: the name of its row. Every method but ``start`` needs one that was started."""

    folder: Path
    fault: str
    ports: dict[str, int] = field(default_factory=own_ports)
    owners: list[Owner] = field(default_factory=list)
    cleanup: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    keeper: Keeper = field(init=False)

    @property
    def state(self) -> StateFolder:
        return StateFolder(self.folder / "state")

    def start(self, *, again: bool = False) -> None:
        """Starts a supervisor; ``again``: the one that comes after, on sound services."""
        self.keeper = keeper.start(Job(None if again else self.fault, self.folder, self.ports))
        owner = self.state.owner()
        assert owner is not None
        self.owners.append(owner)

    @property
    def supervisor(self) -> int:
        return self.owners[-1].pid

    def status(self) -> dict[str, Any]:
        """Of the supervisor; the last one on disk, when that has ended."""
        with contextlib.suppress(ToolkitError):
            return client.status(self.state.path)
        return self.last_status()

    def last_status(self) -> dict[str, Any]:
        """The one on disk."""
        document = self.state.status()
        assert document is not None, "the status can be read"
        return document

    def service(self, name: str = "web") -> dict[str, Any]:
        found: dict[str, Any] = next(each for each in self.status()["services"] if each["name"] == name)
        return found

    def events(self) -> list[dict[str, Any]]:
        return list(read_events(self.state.events_file))

    def is_ready(self) -> bool:
        """All serve, their first requests were measured, and what they are watched by is in place."""
        found = self.status()
        first = [each["first_token_ms"]["first"] for each in found["services"]]
        return bool(found["ready"]) and None not in first and None not in [e["placement"] for e in found["services"]]

    def wait_ready(self) -> None:
        until(self.is_ready)

    def ask(self, path: str, name: str = "web") -> int:
        """The HTTP status; 0: no answer."""
        return answer(self.ports[name], path)

    def kill(self, pid: int, number: signal.Signals = signal.SIGKILL) -> None:
        os.kill(pid, number)

    def kill_supervisor(self) -> None:
        self.keeper.process.kill()
        self.keeper.process.join()

    def members(self, service: str | None = None) -> list[int]:
        """Processes of one service, or of all, under any supervisor of this scene; zombies are none."""
        marks = [f"COEXIST_COOKIE={owner.cookie}.{f'{service}.' if service else ''}".encode() for owner in self.owners]
        return [pid for pid in processes.pids() if any(_carries(pid, mark) for mark in marks)]

    def attempts(self) -> set[str]:
        """``SERVICE.NUMBER`` of everything that runs under the last supervisor of this scene."""
        mark = f"COEXIST_COOKIE={self.owners[-1].cookie}.".encode()
        environments = [processes.environment(pid) or [] for pid in self.members()]
        return {each.removeprefix(mark).decode() for env in environments for each in env if each.startswith(mark)}

    def ranks(self) -> dict[str, int]:
        """Pids of web's ranks by number."""
        name = b"OMPI_COMM_WORLD_RANK="
        found = {pid: processes.environment(pid) or [] for pid in self.members("web")}
        return {v.removeprefix(name).decode(): pid for pid, env in found.items() for v in env if v.startswith(name)}

    def guardians(self) -> list[int]:
        """Of every supervisor of this scene; those of one that was stopped have ended."""
        words = [f"COEXIST_COOKIE={owner.cookie}." for owner in self.owners]
        return [pid for pid in processes.pids() if any(word in _command_line(pid) for word in words)]

    def zombies(self) -> list[int]:
        """Children of the supervisor that it did not reap."""
        found = [processes.stat(pid) for pid in processes.children(self.supervisor)]
        return [each.identity.pid for each in found if each and each.dead]

    def descriptors(self) -> Counter[str]:
        """What the supervisor has open for longer than a moment: how many of each kind."""
        folder = Path(f"/proc/{self.supervisor}/fd")
        return reduce(and_, [Counter(map(_kind, folder.iterdir())) for _ in range(5)])

    def watched(self) -> int:
        """How many processes it waits for."""
        return sum(count for kind, count in self.descriptors().items() if "pidfd" in kind)

    def grants(self) -> list[str | None]:
        """Services that something is held for; what a dead owner held is free."""
        return [grant.service for grant in keeper.ledger(self.folder).grants()]

    def grants_written(self) -> list[Any]:
        """What the ledger's file says, of dead owners too."""
        found: list[Any] = json.loads(keeper.ledger(self.folder).path.read_text())["grants"]
        return found

    def down(self) -> None:
        """``coexist down``; one that gave up has ended by itself."""
        with contextlib.suppress(ToolkitError):
            client.down(self.state.path)
        self.keeper.process.join(60.0)

    def end(self) -> None:
        """Nothing is left, however the test ended."""
        if self.owners:
            self.kill_supervisor()
        for pid in (*self.guardians(), *self.members()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for owner in self.owners:
            if groups := Groups.left(owner.group, owner.cookie):
                until(lambda groups=groups: groups.close() or not groups.folder.exists())
        self.cleanup.close()


def _carries(pid: int, mark: bytes) -> bool:
    return any(variable.startswith(mark) for variable in processes.environment(pid) or ())


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""


def _kind(descriptor: Path) -> str:
    """Files by name, whatever deployment they are of; sockets and pipes without their numbers."""
    try:
        target = str(descriptor.readlink())
    except OSError:
        return "closed meanwhile"
    if target.endswith(" (deleted)"):
        return "a file without a name"
    if target.startswith("/"):
        return target.rpartition("/")[2]
    return target if target.startswith("anon_inode") else target.partition(":")[0]
