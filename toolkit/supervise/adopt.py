"""What another supervisor started, and serves on: it is found, and proven again instead of started again."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from toolkit.masking import secret_values
from toolkit.runtimes.base import Launch
from toolkit.supervise import changes, containers, guardian
from toolkit.supervise.attempt import Attempt
from toolkit.supervise.groups import Groups
from toolkit.supervise.guard import cookie_prefix
from toolkit.supervise.lifecycle import Failure, actions, events
from toolkit.supervise.process import Tree
from toolkit.supervise.records import Record
from toolkit.supervise.service import ServiceRun
from toolkit.supervise.state import Owner, StateFolder
from toolkit.warm import StageReport, deep
from toolkit.warm.client import RequestFailedError
from toolkit.warm.model import PARTS

TRIES, PAUSE_S, ANSWER_TIMEOUT_S = 3, 0.5, 10.0


@dataclass
class Adoption(Attempt):
    """It passes the stages as every attempt does: what was done in its time stands, health is asked for anew."""

    record: Record = field(kw_only=True)

    def begin(self) -> None:
        """From now on it is watched, and taken down with the deployment, however far its proof is."""
        record, launch = self.record, _launch(self.run, self.record)
        self._secrets = secret_values(launch.own_env)
        groups = Groups.left(record.group, self.world.cookie)
        tree = Tree.adopt(record.identity, record.cookie, groups.of(record.name) if groups else None)
        log = self.world.logs[self.run.name].continue_attempt(record.log_start_bytes)
        self.kept = self.world.keeps
        self._runs(tree, launch, log)
        self.note(f"runs since an earlier supervisor (pid {record.pid}): asked whether it is healthy")

    async def _reserve(self, _: actions.Reserve) -> None:
        """What it was granted is held on; its port and its memory are its own already."""
        await asyncio.to_thread(self.world.reserve, self.run)
        self.post(events.Reserved(self.number))

    async def _spawn(self, _: actions.Spawn) -> None:
        self.post(events.Spawned(self.number, self.record.pid, self.record.log_start_bytes))

    async def _wait_loaded(self, _: actions.WaitLoaded) -> None:
        self.post(events.Loaded(self.number, StageReport(dict.fromkeys(PARTS))))

    async def _prime(self, _: actions.Prime) -> None:
        problem = await self._problem()
        if problem is not None:
            self._fail(
                Failure(f"it runs since an earlier supervisor, but is not healthy: {problem}", "retry", "not_live")
            )
            return
        self._proof = self.record.proven()
        self.note(f"adopted (pid {self.record.pid})")
        self.post(events.Proven(self.number, self._proof))

    async def _problem(self) -> str | None:
        """Why it does not do its work, asked a few times; None: it does, or has too much of it."""
        problem: str | None = None
        for number in range(TRIES):
            if number:
                await self.world.clock.sleep(PAUSE_S)
            problem = await self._asked()
            if problem is None:
                break
        return problem

    async def _asked(self) -> str | None:
        target, http = self._process().target, self.world.http
        try:
            await deep.one_answer(target, http, ANSWER_TIMEOUT_S)
            found = await deep.canary(target, http, ANSWER_TIMEOUT_S)
        except RequestFailedError as error:
            return None if error.busy else error.reason
        return None if found is None or found.ok else f"expected '{found.expected}', got '{found.got}'"


def take_over(folder: StateFolder, previous: Owner, runs: Mapping[str, ServiceRun]) -> dict[str, Record]:
    """What serves on although its supervisor died, and is wanted as it is; nothing else of that is left. Blocks."""
    left = folder.left()
    adopted = {name: each for name, each in left.items() if name in runs and _is_wanted(each, runs[name])}
    spared = [record.name for record in adopted.values()]
    guardian.kill_all(cookie_prefix(previous.cookie).encode(), spared, previous.group)
    containers.remove_left((run.container for run in runs.values() if run.container), previous.cookie)
    folder.records.remove_all(but=adopted)
    groups = Groups.left(previous.group, previous.cookie)
    if groups is not None and not adopted:
        groups.close()
    return adopted


def _is_wanted(record: Record, run: ServiceRun) -> bool:
    return changes.same_process(record.spec, run.spec)


def _launch(run: ServiceRun, record: Record) -> Launch:
    if run.launch_as is not None and record.token is not None:
        return run.launch_as(record.token)
    return run.launch(record.attempt)
