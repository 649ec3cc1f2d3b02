"""Events in, actions out: the only writer of every instance's state."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from toolkit import warm
from toolkit.affinity import wrap as pin_and_exec
from toolkit.errors import ToolkitError
from toolkit.host import gpu_use as devices
from toolkit.names import did_you_mean
from toolkit.reserve import gpu_starts as one_start_per_gpu
from toolkit.supervise import (
    containers,
    document,
    failures,
    gates,
    not_ready,
    ports,
    process,
    telemetry,
)
from toolkit.supervise.adopt import Adoption, take_over
from toolkit.supervise.attempt import Attempt, Diagnose, Keep, Reserve, World, Wrap
from toolkit.supervise.changes import Changes
from toolkit.supervise.chronicle import Chronicle
from toolkit.supervise.clock import Calendar, SystemClock
from toolkit.supervise.control import Control
from toolkit.supervise.gpu_turn import FreeMemory, GpuStarts
from toolkit.supervise.groups import Groups
from toolkit.supervise.guard import Guard
from toolkit.supervise.journal import Journal
from toolkit.supervise.lifecycle import AT_REST, Event, Instance, State, events, step
from toolkit.supervise.look import GpuUse
from toolkit.supervise.metrics import Metrics
from toolkit.supervise.records import Record
from toolkit.supervise.roster import Roster
from toolkit.supervise.service import ServiceRun
from toolkit.supervise.service_log import ServiceLog
from toolkit.supervise.state import Owner, StateFolder
from toolkit.supervise.status_writer import StatusWriter
from toolkit.supervise.watch import DEEP_S

_LOG = logging.getLogger(__name__)
WATCH_S = 5.0
PLACEMENT_S = 60.0  # reading numa_maps takes each process's memory map lock for a moment
_HOUSEKEEPING_S = 1.0
OnDeath = Literal["kill", "keep"]


class Supervisor:
    """Runs the services of one deployment. One event loop, one thread; ``run`` is all that most callers need.

    ``control_port`` None or 0: a free port, to be found in ``address``. ``diagnose(outcome)`` judges a failure, in
    a thread. ``reserve(run)`` takes hold of what an attempt needs; nothing is given back between attempts, and whoever
    does so at rest sees that in ``on_change``. ``gpu_starts(uuids)`` is held from INIT to SERVING; in it,
    ``free_memory(run)`` says how free memory differs from what was reserved. ``gpu_use()`` is who uses the devices.
    ``reserve`` and ``free_memory`` run in threads. ``on_change`` is called after every change, with the supervisor.
    ``on_death``: whether services that serve are to outlive it when it is killed; then ``keep(run, process)`` is told,
    in a thread, which process has what was reserved. ``reload(self, file)`` makes of a file what ``apply`` takes,
    calls that, and returns what was different.
    """

    def __init__(
        self,
        deployment: str,
        services: Sequence[ServiceRun],
        state_dir: Path,
        *,
        wrap: Wrap = pin_and_exec,
        control_port: int | None = None,
        clock: warm.Clock | None = None,
        jitter: Callable[[], float] = random.random,
        diagnose: Diagnose = failures.plain,
        reserve: Reserve = lambda _: None,
        gpu_starts: GpuStarts = one_start_per_gpu,
        free_memory: FreeMemory = lambda _: None,
        gpu_use: GpuUse = devices.read,
        on_change: Callable[[Supervisor], None] | None = None,
        watch_s: float = WATCH_S,
        placement_s: float = PLACEMENT_S,
        deep_s: float = DEEP_S,
        on_death: OnDeath = "kill",
        keep: Keep = lambda _, __: None,
        reload: Callable[[Supervisor, Path], Awaitable[dict[str, Any]]] | None = None,
        find_groups: Callable[[str], Groups | None] = Groups.find,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self.deployment = deployment
        self._roster = Roster.of(services)
        self._folder = StateFolder(state_dir)
        self._control_port = control_port or 0
        self._clock = clock or SystemClock()
        self._calendar = Calendar(self._clock.now())
        self._journal = Journal(self._folder, self._clock, self._calendar)
        self._logs = {run.name: ServiceLog(self._folder.log(run.name), self._unix_s) for run in services}
        self._writer = StatusWriter(self._folder, self.snapshot, self._journal.disk)
        self._metrics = Metrics()
        self._make_world = partial(
            World, logs=self._logs, clock=self._clock, jitter=jitter, diagnose=diagnose, wrap=wrap, reserve=reserve,
            gpu_starts=gpu_starts, free_memory=free_memory, gpu_use=gpu_use, watch_s=watch_s, placement_s=placement_s,
            deep_s=deep_s, records=self._folder.records, keeps=on_death == "keep", keep=keep,
        )  # fmt: skip
        self._find_groups = find_groups
        self._environ = environ
        self._reload, self._reloading = reload, asyncio.Lock()
        self._on_change = on_change or (lambda _: None)
        self._instances = {run.name: self._instance(run) for run in services}
        self._attempts: dict[str, Attempt] = {}
        self._inbox: deque[tuple[str, Event]] = deque()
        self._applying = self._stopping = False
        self._heir_of: Owner | None = None  # whose processes nobody answers for until we do
        self._change = asyncio.Event()
        self._cleanup = contextlib.AsyncExitStack()
        self.address: str | None = None

    async def run(
        self, until: Literal["stopped", "ready"] = "stopped", timeout_s: float | None = None
    ) -> dict[str, Any]:
        """The status document: of the moment all was ready (``ready``), or of the end (``stopped``).

        Everything is stopped, and nothing left, when it returns or raises. ``timeout_s`` bounds the time to readiness.
        A stop that was asked for before readiness ends it with the status of that moment.

        Raises: NotReadyInTimeError; ToolkitError when a required service failed for good, a port is taken, or
        another supervisor runs in the state folder.
        """
        await self.start()
        try:
            if until == "ready" or timeout_s is not None:
                await self.wait_ready(timeout_s)
            found = self.snapshot()
            if until == "stopped":
                await self.wait_stopped()
        finally:
            await self.close()
        return found if until == "ready" else self.snapshot()

    async def start(self) -> None:
        """Takes the state folder, tests the ports together, opens the control doors, and begins."""
        try:
            await self._open()
        except BaseException:
            await self._cleanup.aclose()
            raise
        self._journal.tell("deployment", state="started", deployment=self.deployment)
        self._settle()

    async def _open(self) -> None:
        previous = self._folder.open(self.deployment)
        self._cleanup.callback(lambda: self._folder.close(self._heir_of))
        spans = telemetry.find(self._environ, self.deployment, self._calendar.unix_s, self._say)
        self._cleanup.push_async_callback(spans.close)
        self._chronicle = Chronicle(self._journal, self._metrics, spans, self._clock)
        adopted = await asyncio.to_thread(take_over, self._folder, previous, self._roster.runs) if previous else {}
        self._heir_of = previous if adopted else None
        wanted = [run.ports() for run in self._roster.runs.values() if run.name not in adopted]
        ports.ensure_free({name: port for each in wanted for name, port in each.items()})
        process.become_subreaper()
        cookie = previous.cookie if previous and adopted else secrets.token_hex(8)
        groups = (Groups.left(previous.group, cookie) if previous else None) or self._find_groups(cookie)
        if groups is not None:
            self._cleanup.callback(groups.close)
        self._start_guards(cookie, groups)
        self._guard.spare(record.name for record in adopted.values())
        http = await self._cleanup.enter_async_context(warm.session())
        self._world = self._make_world(http=http, cookie=cookie, groups=groups)
        await asyncio.to_thread(self._begin_logs, adopted)
        self._attempts = {name: self._attempt(name, 1) for name in self._roster.runs if name not in adopted}
        await self._open_control()
        self._adopt(adopted)
        self._heir_of = None  # from here on we take them down
        await self._cleanup.enter_async_context(self._writer)
        self._cleanup.push_async_callback(_cancelled, asyncio.create_task(self._keep_house()))

    def _adopt(self, records: Mapping[str, Record]) -> None:
        """Each begins at once, whatever its gates say: its process is there, and somebody must answer for it."""
        for name, record in records.items():
            self._instances[name] = replace(self._instances[name], attempt=record.attempt)
            told = self._teller(name, record.attempt)
            post = partial(self._post, name)
            attempt = Adoption(self._roster.runs[name], record.attempt, self._world, post, told, record=record)
            self._attempts[name] = attempt
            attempt.begin()
            self._inbox.append((name, events.Begin(record.attempt)))

    def _start_guards(self, cookie: str, groups: Groups | None) -> None:
        self._guard = Guard(cookie, groups)
        self._cleanup.push_async_callback(self._guard.dismiss)
        self._container_guard = containers.Guard(
            cookie, (run.container for run in self._roster.runs.values() if run.container)
        )
        self._cleanup.push_async_callback(self._container_guard.dismiss)

    async def _open_control(self) -> None:
        control = Control(self, self._journal)
        self._cleanup.push_async_callback(control.close)
        port = await control.open(self._control_port, self._folder.socket)
        self.address = f"http://127.0.0.1:{port}"
        self._control_port = port
        self._write_owner()

    def _write_owner(self) -> None:
        us, world = process.own_identity(), self._world
        group = str(world.groups.folder) if world.groups else None
        self._folder.write_owner(
            Owner(self.deployment, us.pid, us.start_ticks, world.cookie, self._control_port, group, world.keeps)
        )

    async def _keep_house(self) -> None:
        while True:
            await asyncio.sleep(_HOUSEKEEPING_S)
            process.reap_adopted()
            with contextlib.suppress(OSError, ToolkitError):  # a full disk or process table: again in a second
                await self._keep_in_shape()

    async def _keep_in_shape(self) -> None:
        if self._guard.keep() or self._container_guard.keep():
            self._journal.tell("log", text="a guardian was gone; a new one was started")
        self._journal.flush()
        await asyncio.to_thread(self._look_at_logs)

    def _unix_s(self) -> float:
        return self._calendar.unix_s(self._clock.now())

    def _say(self, text: str) -> None:
        self._journal.tell("log", text=text)

    def _begin_logs(self, running: Collection[str]) -> None:
        for name, log in self._logs.items():
            if name not in running:
                log.begin_run()

    def _look_at_logs(self) -> None:
        for log in self._logs.values():
            log.look()

    async def wait_ready(self, timeout_s: float | None = None) -> None:
        """Returns when all required services are SERVING and measured, a stop was asked for, or all were stopped.

        Raises: NotReadyInTimeError; ToolkitError when one of them failed for good.
        """
        try:
            await asyncio.wait_for(self._until(self._ready_or_never), timeout_s)
        except asyncio.TimeoutError:
            raise not_ready.in_time(timeout_s or 0.0, self.reasons(), self._folder, self.snapshot()) from None
        self._raise_if_failed()

    def reasons(self) -> tuple[str, ...]:
        """One sentence for each required service that is not ready: where it stands, and why."""
        return document.not_ready(self._roster.gates, self._instances, self.activity(), self._clock.now())

    def _ready_or_never(self) -> bool:
        required = [self._instances[gate.name] for gate in self._roster.gates if gate.required]
        measured = gates.all_ready(self._roster.gates, self._instances) and all(each.measured for each in required)
        return measured or self._stopping or gates.all_at_rest(self._instances) or bool(self._failed())

    def _failed(self) -> list[Instance]:
        required = [self._instances[gate.name] for gate in self._roster.gates if gate.required]
        return [instance for instance in required if instance.state is State.FAILED]

    async def wait_stopped(self) -> None:
        """Returns when a stop was asked for, or nothing runs any more because services failed.

        Services that a person stopped one by one can be started again: that ends nothing.

        Raises: ToolkitError when a required service failed for good and nothing else runs.
        """
        await self._until(lambda: self._stopping or gates.all_ended(self._instances))
        self._raise_if_failed()

    def _raise_if_failed(self) -> None:
        failed = self._failed()
        if failed and not self._stopping:
            raise not_ready.failed(failed, self._folder, self.snapshot())

    async def close(self) -> None:
        """Stops everything in reverse order of dependence; when it returns, nothing of the deployment is left."""
        if not self._stopping:
            self.request_stop()
        try:
            await self._until(lambda: gates.all_at_rest(self._instances))
            self._journal.tell("deployment", state="stopped", deployment=self.deployment)
        finally:
            if not gates.all_at_rest(self._instances):
                self._kill_now()
            await self._cleanup.aclose()

    def _kill_now(self) -> None:
        for attempt in self._attempts.values():
            attempt.kill_now()

    def request_stop(self) -> None:
        """Asks for a stop of everything; asked again, everything is killed at once. Safe in a signal handler."""
        again, self._stopping = self._stopping, True
        if again:
            for name, instance in self._instances.items():
                self._inbox.append((name, events.StopRequested(instance.attempt, force=True)))
        self._settle()

    @property
    def stopping(self) -> bool:
        """Whether a stop of everything was asked for."""
        return self._stopping

    def stop(self, name: str) -> None:
        """Stops one service. Raises: ToolkitError when there is none of this name."""
        self._post(name, events.StopRequested(self._named(name).attempt))

    def restart(self, name: str) -> None:
        """Begins a new attempt of one service. Raises: ToolkitError when there is none of this name."""
        self._post(name, events.RestartRequested(self._named(name).attempt))

    async def reload(self, config: Path) -> dict[str, Any]:
        """What was different in this file, as JSON; what is different has begun to be restarted, and nothing else.

        Raises: ToolkitError when that cannot be done; then nothing has changed.
        """
        if self._reload is None or self._stopping:
            why = "is stopping" if self._stopping else "follows no file: 'coexist bench' measures it"
            hint = "Wait until it has ended, then start anew."
            raise ToolkitError(f"deployment '{self.deployment}' {why}", str(config), hint, code="not_reloadable")
        try:
            async with self._reloading:
                self._changed()
                return await self._reload(self, config)
        finally:
            self._changed()

    @property
    def reloading(self) -> bool:
        """Whether another shape is being prepared or taken."""
        return self._reloading.locked()

    def running(self) -> dict[str, ServiceRun]:
        """Services of which something runs, or is about to, and that are wanted."""
        resting = self.resting() | self._roster.leaving
        return {name: run for name, run in self._roster.runs.items() if name not in resting}

    def compare(self, services: Sequence[ServiceRun]) -> Changes:
        """What would be different with these services."""
        return self._roster.compare(services, self.resting())

    def apply(self, services: Sequence[ServiceRun], on_death: OnDeath = "kill") -> Changes:
        """What was different: from now on these services are wanted. Only what is different is restarted."""
        self._container_guard.cover(run.container for run in services if run.container)
        found = self.compare(services)
        self._world = replace(self._world, keeps=on_death == "keep")
        with contextlib.suppress(OSError):  # a full disk: what it says of our death is as old as the last one written
            self._write_owner()
        self._journal.tell("deployment", state="reloaded", deployment=self.deployment, **found.document())
        self._roster = self._roster.changed(services, found)
        for run in services:
            self._want(run.name, anew=run.name in (*found.added, *found.changed, *found.started))
        for name in found.removed:
            self._inbox.append((name, events.StopRequested(self._instances[name].attempt)))
        self._settle()
        return found

    def _want(self, name: str, anew: bool) -> None:
        """What runs goes on by the policy that is wanted now; or a new attempt begins."""
        before, run = self._instances.get(name), self._roster.runs[name]
        if before is None:
            self._add(run)
            return
        self._instances[name] = replace(before, policy=run.policy())
        if not anew:
            return
        if before.state is State.INIT and not before.begun:
            self._attempts[name] = self._attempt(name, before.attempt)
        self._inbox.append((name, events.RestartRequested(before.attempt)))

    def _instance(self, run: ServiceRun) -> Instance:
        return Instance(run.name, run.policy(), since_s=self._clock.now())

    def _add(self, run: ServiceRun) -> None:
        self._instances[run.name] = self._instance(run)
        self._logs[run.name] = ServiceLog(self._folder.log(run.name), self._unix_s)
        self._logs[run.name].begin_run()
        self._attempts[run.name] = self._attempt(run.name, 1)

    def _let_go(self) -> None:
        """What was removed and has ended is forgotten."""
        ended = {name for name in self._roster.leaving if self._instances[name].state in AT_REST}
        for name in ended:
            del self._instances[name], self._attempts[name], self._logs[name]
            self._metrics.forget(name)
        if ended:
            self._roster = self._roster.without(ended)

    def _named(self, name: str) -> Instance:
        if name not in self._instances:
            hint = did_you_mean(name, self._instances) or f"There are: {', '.join(self._instances)}."
            raise ToolkitError(f"no service '{name}'", self.deployment, hint, code="unknown_service")
        return self._instances[name]

    def snapshot(self) -> dict[str, Any]:
        """The document of ``coexist status --json``."""
        runs = list(self._roster.runs.values())
        return document.status(
            self.deployment, runs, self._instances, now_s=self._clock.now(), calendar=self._calendar,
            address=self.address, activity=self.activity(),
        )  # fmt: skip

    def proofs(self) -> dict[str, warm.Proof]:
        """What PRIME proved of each service that serves."""
        serving = ((name, each) for name, each in self._instances.items() if each.state is State.SERVING)
        return {name: each.proof for name, each in serving if each.proof is not None}

    def waiting(self) -> set[str]:
        """Services whose turn has not come."""
        return {name for name, each in self._instances.items() if each.state is State.INIT and not each.begun}

    def resting(self) -> set[str]:
        """Services of which nothing runs, and nothing will unless somebody asks for it."""
        return {name for name, each in self._instances.items() if each.state in AT_REST} | self._roster.gone

    def readiness(self) -> dict[str, Any]:
        """The answer of ``/readyz``: ``ready``, and each service's ``ready`` and ``state``."""
        services = {name: document.readiness(name, self._roster.gates, self._instances) for name in self._roster.runs}
        return {"ready": gates.all_ready(self._roster.gates, self._instances), "services": services}

    def metrics(self) -> bytes:
        """Prometheus text."""
        return self._metrics.text(
            self._instances, gates.all_ready(self._roster.gates, self._instances), self._clock.now()
        )

    def progress(self) -> dict[str, warm.Progress | None]:
        """How far each service's stage is, as its program tells it."""
        return {name: attempt.activity for name, attempt in self._attempts.items()}

    def activity(self) -> dict[str, str]:
        """What each service that starts does or waits for, in words; none of the others."""
        found = {}
        for name, instance in self._instances.items():
            others = gates.waiting_for(name, self._roster.gates, self._instances)
            told = self._attempts[name].activity if name in self._attempts else None
            if others:
                found[name] = f"waits for {', '.join(others)}"
            elif told and told.stage == instance.state.value:
                found[name] = told.what
        return found

    def _attempt(self, name: str, number: int) -> Attempt:
        last = self._instances[name].last_failure
        stood_still = last is not None and last.failure.kind == "stalled"  # it may be that it only takes longer today
        return Attempt(
            self._roster.runs[name], number, self._world, partial(self._post, name), self._teller(name, number),
            learns=not stood_still,
        )  # fmt: skip

    def _teller(self, name: str, number: int) -> Callable[[str], None]:
        def note(text: str) -> None:
            self._journal.tell("log", name, number, text=text)

        return note

    def _post(self, name: str, event: Event) -> None:
        self._inbox.append((name, event))
        self._settle()

    def _settle(self) -> None:
        """Applies every event there is, and every decision that follows; a nested call leaves them to the outer one."""
        if self._applying:
            return
        self._applying = True
        try:
            while self._inbox or self._decide():
                self._apply(*self._inbox.popleft())
            self._let_go()
        finally:
            self._applying = False
        self._changed()

    def _decide(self) -> bool:
        if self._stopping:
            stops = gates.next_stops(self._roster.gates, self._instances)
            self._inbox.extend((name, events.StopRequested(self._instances[name].attempt)) for name in stops)
        elif (start := gates.next_start(self._roster.gates, self._instances)) is not None:
            self._inbox.append(start)
        return bool(self._inbox)

    def _apply(self, name: str, event: Event) -> None:
        if name not in self._instances:
            return  # a last word of what was removed
        before = self._instances[name]
        after, actions = step(before, event, self._clock.now())
        self._instances[name] = after
        if after is not before:
            self._chronicle.happened(event, after)
        for action in actions:
            if not self._chronicle.told(action, before, after):
                self._attempts[name].perform(action)
        if after.attempt != before.attempt:
            self._attempts[name] = self._attempt(name, after.attempt)
        self._guard.spare(attempt.name for attempt in self._attempts.values() if attempt.kept)

    def _changed(self) -> None:
        self._writer.note()
        change, self._change = self._change, asyncio.Event()
        change.set()
        try:
            self._on_change(self)
        except Exception:  # whoever watches must not bring down what is watched
            _LOG.exception("on_change")

    async def _until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            await self._change.wait()


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
