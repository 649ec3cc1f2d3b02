"""Performs the actions of one attempt of one instance, and posts what came of them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol

import aiohttp

from toolkit import processes, warm
from toolkit.errors import ToolkitError
from toolkit.files import disk_errors
from toolkit.host.model import Holder
from toolkit.masking import masked, secret_values
from toolkit.processes import Identity
from toolkit.runtimes.base import Launch
from toolkit.runtimes.environment import TOKEN
from toolkit.supervise import (
    caches,
    containers,
    failures,
    history,
    launch_files,
    log_checks,
    outcome,
    placement,
    ports,
    ranks,
    stage_parts,
    window,
)
from toolkit.supervise.compile_watch import CompileWatch
from toolkit.supervise.gpu_turn import FreeMemory, GpuStarts, GpuTurn
from toolkit.supervise.groups import Groups
from toolkit.supervise.guard import cookie_prefix
from toolkit.supervise.leftovers import Leftovers
from toolkit.supervise.lifecycle import Action, Event, Failure, actions, events
from toolkit.supervise.logs import LogSearch, LogView
from toolkit.supervise.look import GpuUse, held_bytes, look
from toolkit.supervise.lookout import Lookout
from toolkit.supervise.outcome import OomCount, Outcome
from toolkit.supervise.process import Tree
from toolkit.supervise.records import Record, Records
from toolkit.supervise.service import ServiceRun
from toolkit.supervise.service_log import ServiceLog
from toolkit.supervise.watch import Late, Watcher
from toolkit.warm.compiles import Seen

_LOG = logging.getLogger(__name__)
_STOP_LOCK_S = 10.0  # a planned stop waits so long for a start on its GPU, and is then no longer put off
_GPU_LOOK_S = 2.0  # without progress, the driver is asked too
_LAST_WORDS_S = 0.25  # a failed request often means that the process is ending: its exit says more

Diagnose = Callable[[Outcome], Failure]
Reserve = Callable[[ServiceRun], None]
Keep = Callable[[ServiceRun, Identity], None]


class Wrap(Protocol):
    """``affinity.wrap``: the argv that pins to these CPUs, then becomes ``argv``."""

    def __call__(self, argv: Sequence[str], cpus: tuple[int, ...], memory_policy: Any) -> Sequence[str]: ...


@dataclass(frozen=True)
class World:
    """What attempts need of the world; ``cookie`` marks every process of the deployment.

    ``keeps``: what serves is to outlive us, so it is written to ``records``, and ``keep`` is told.
    """

    logs: Mapping[str, ServiceLog]
    http: aiohttp.ClientSession
    clock: warm.Clock
    jitter: Callable[[], float]
    diagnose: Diagnose
    wrap: Wrap
    reserve: Reserve
    gpu_starts: GpuStarts
    free_memory: FreeMemory
    gpu_use: GpuUse
    cookie: str
    groups: Groups | None
    records: Records
    keeps: bool
    keep: Keep
    watch_s: float
    placement_s: float
    deep_s: float


@dataclass
class _Running:
    """An attempt's process, once it is there."""

    tree: Tree
    launch: Launch
    target: warm.Target
    log: LogView
    lookout: Lookout
    oom: OomCount
    compiles: CompileWatch


@dataclass
class Attempt:
    """One attempt; ``post`` takes its events, ``note`` a sentence for the event log.

    ``kept``: it is to outlive the supervisor, should that die now. ``learns``: earlier starts say how long it may take.
    """

    run: ServiceRun
    number: int
    world: World
    post: Callable[[Event], None]
    note: Callable[[str], None]
    learns: bool = True
    activity: warm.Progress | None = None
    kept: bool = False
    _running: _Running | None = None
    _work: set[asyncio.Task[None]] = field(default_factory=set)
    _ending: asyncio.Task[None] | None = None
    _guard: asyncio.Task[None] | None = None
    _proof: warm.Proof | None = None
    _watcher: Watcher | None = None
    _death: ranks.Death | None = None
    _secrets: tuple[str, ...] = ()
    _leftovers: Leftovers = field(init=False)
    _turn: GpuTurn = field(init=False)
    _cache: history.Cache = "cold"
    _stage: str = "PRELOAD"
    _windows_s: dict[str, float] = field(default_factory=dict)
    _spent_s: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._leftovers = Leftovers(self.run.cache_dir)
        world = self.world
        self._turn = GpuTurn(self.run, world.gpu_starts, world.free_memory, world.clock, self.note)

    def perform(self, action: Action) -> None:
        """Starts the action; its outcome is posted later, never from within this call."""
        if isinstance(action, actions.End):
            self._begin_end(action)
        elif isinstance(action, actions.CancelRetry):
            self._cancel_work()
        else:
            self._start(self._performers()[type(action)], action)

    def _performers(self) -> Mapping[type[Action], Callable[[Any], Coroutine[Any, Any, None]]]:
        return {
            actions.Reserve: self._reserve,
            actions.Spawn: self._spawn,
            actions.WaitLoaded: self._wait_loaded,
            actions.ExtendWindow: self._watch_on_window,
            actions.Prime: self._prime,
            actions.Register: self._register,
            actions.Watch: self._watch,
            actions.ScheduleRetry: self._retry_later,
        }

    def kill_now(self) -> None:
        """Sends KILL to the whole tree without waiting; for a supervisor that has no time left."""
        if self._running is not None:
            self._running.tree.kill_once()
            if container := self._running.launch.container:
                containers.remove_now(container, self._cookie)

    def _start(self, work: Callable[..., Coroutine[Any, Any, None]], *given: Any) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(self._guarded(work, *given))
        self._work.add(task)
        task.add_done_callback(self._work.discard)
        return task

    async def _guarded(self, work: Callable[..., Coroutine[Any, Any, None]], *given: Any) -> None:
        try:
            await work(*given)
        except warm.WarmupError as error:
            await self._after_last_words(error)
        except ToolkitError as error:
            self._fail(failures.from_error(error, "retry" if error.code == "no_space" else "stop"))
        except Exception as error:
            _LOG.exception("%s attempt %d", self.run.name, self.number)
            self._fail(Failure(f"a fault of coexist itself: {error!r}", "stop", "internal"))

    async def _after_last_words(self, error: warm.WarmupError) -> None:
        if self._running is None or not await self._exits_soon():
            self._fail(failures.from_warmup(error))

    async def _exits_soon(self) -> bool:
        """True when the process ends within moments: that is told by who waits for it."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._process().tree.wait_exit(), _LAST_WORDS_S)
            return True
        return False

    def _fail(self, failure: Failure) -> None:
        self.post(events.Failed(self.number, failures.without(failure, self._secrets), self.world.jitter()))

    async def _reserve(self, _: actions.Reserve) -> None:
        await self._turn.take()
        try:
            ports.ensure_free(self.run.ports())
        except ToolkitError as error:  # later it may be a neighbour that is about to end
            self._fail(failures.from_error(error, self._if_taken()))
            return
        await asyncio.to_thread(self.world.reserve, self.run)
        if missing := await self._turn.missing_memory():
            self._fail(Failure(missing, self._if_taken(), "gpu_memory", advice="See 'coexist host' for who holds it."))
            return
        self.post(events.Reserved(self.number))

    def _if_taken(self) -> Literal["stop", "retry"]:
        return "stop" if self.number == 1 else "retry"

    async def _spawn(self, _: actions.Spawn) -> None:
        prepared = await asyncio.to_thread(caches.prepare, self.run.cache_dir)
        for text in prepared.notes:
            self.note(text)
        launch = self.run.launch(self.number)
        self._secrets = secret_values(launch.own_env)
        self._begin_windows(launch, prepared.state)
        log = await asyncio.to_thread(self.world.logs[self.run.name].begin_attempt, launch.rank_logs)
        await asyncio.to_thread(launch_files.write, launch.files)
        with disk_errors(log.path, "cannot write its log"):
            tree = self._tree(launch, log.path)
        self._runs(tree, launch, log)
        self.post(events.Spawned(self.number, tree.pid, log.start_bytes, self._windows_s))

    def _begin_windows(self, launch: Launch, cache: history.Cache) -> None:
        """How long each stage may take: as its own starts here teach, at most what its program is given."""
        self._cache, run, ceiling_s = cache, self.run, launch.preload_window_s
        boots = history.read(run.history) if run.learns and self.learns else ()
        self._windows_s = {
            stage: history.window_s(boots, stage, run.alike, cache, ceiling_s) for stage in ("PRELOAD", "PRIME")
        }

    def _tree(self, launch: Launch, log: Path) -> Tree:
        group = self.world.groups.make(self.name) if self.world.groups else None
        try:
            return Tree.spawn(
                self._argv(launch), launch.env, launch.cwd, log, self._cookie,
                group=group, outlives_us=self.world.keeps,
            )  # fmt: skip
        except BaseException:
            if group is not None:
                group.remove()
            raise

    def _runs(self, tree: Tree, launch: Launch, log: LogView) -> None:
        """From here on there is a process to ask, to watch and to take down."""
        url = f"http://127.0.0.1:{self.run.port}"
        target = warm.Target(url, launch.probes, LogSearch(log))
        oom = OomCount.begun(tree.pid, group=tree.group.folder if tree.group else None)
        watch = CompileWatch.of(
            target, self.world.http, tree, log,
            env=launch.own_env, cache_dir=self.run.cache_dir, on_gpu=bool(self.run.gpus),
        )  # fmt: skip
        lookout = Lookout.of(tree, log, watch.compilers, target, self.world.clock)
        self._running = _Running(tree, launch, target, log, lookout, oom, watch)
        lookout.window = self._open_window(lookout.sample())
        self._start(self._watch_exit, self._running)

    @property
    def name(self) -> str:
        """``SERVICE.NUMBER``."""
        return f"{self.run.name}.{self.number}"

    @property
    def _cookie(self) -> str:
        return f"{self.world.cookie}.{self.name}"

    def _argv(self, launch: Launch) -> Sequence[str]:
        """Pinned here, or in a container, where its engine does it."""
        if launch.container is None:
            return self.world.wrap(launch.argv, self.run.cpus, self.run.memory_policy)
        containers.forget(launch.container)
        return containers.labelled(launch.argv, self.world.cookie, self._cookie)

    async def _watch_exit(self, running: _Running) -> None:
        exit_status = await running.tree.wait_exit()
        await self._is_dead(running, exit_status)

    async def _watch_ranks(self) -> None:
        """Ends the attempt when a long-lived member died first, even when the process that was started lives on."""
        tree = self._process().tree
        found = await asyncio.to_thread(self._ranks, tree.pid, await self._pids())
        self._death = await ranks.first_death(found, self.note, self._counts)
        if not await self._exits_soon():
            await self._is_dead(self._process(), self._death.exit_status)

    def _counts(self, death: ranks.Death) -> bool:
        """Whether the rank died before the process that was started; noted at once, since that often follows."""
        first = self._process().tree.exit_status is None
        if first and death.rank.sure:
            self._death = self._death or death
        return first

    def _ranks(self, root: int, pids: Collection[int]) -> tuple[ranks.Rank, ...]:
        holders = {holder.pid for use in self.world.gpu_use() for holder in use.holders if holder.pid is not None}
        return ranks.find(root, pids, holders)

    async def _is_dead(self, running: _Running, exit_status: int | None) -> None:
        """Whoever is told first: the death of a rank is the reason, the end of its launcher the consequence."""
        found = await self._diagnosed(running, exit_status)
        self._fail(found if self._death is None else failures.rank_died(self._death, found))

    async def _diagnosed(self, running: _Running, exit_status: int | None, quiet_s: float | None = None) -> Failure:
        """Why the attempt ended or stalls; reading the log and asking the driver are not for the event loop.

        ``quiet_s``: for how long nothing has moved in a start.
        """
        compiling = outcome.is_compiling(running.tree.members()) if exit_status is None else None

        def judged() -> Failure:
            grew, others = running.oom.grew(), self._others_on_its_devices()
            seen = Outcome(self.run.name, running.log, exit_status, grew, compiling, others, quiet_s)
            return self.world.diagnose(seen)

        return await asyncio.to_thread(judged)

    def _others_on_its_devices(self) -> tuple[Holder, ...]:
        devices = self.run.gate().devices
        return outcome.others(devices, self.world.gpu_use(), cookie_prefix(self.world.cookie)) if devices else ()

    async def _wait_loaded(self, _: actions.WaitLoaded) -> None:
        running, world = self._process(), self.world
        began_s, self._stage = world.clock.now(), "PRELOAD"
        self._begin_guard()
        report = await warm.wait_loaded(running.target, world.http, world.clock, self._on_progress)
        self._end_guard()
        if report.attention:
            self.note(f"attention: {report.attention}")
        wrong = await asyncio.to_thread(log_checks.judge, running.launch.log_checks, running.log)
        if wrong is not None:
            self._fail(wrong)
            return
        self._spent_s["PRELOAD"] = world.clock.now() - began_s
        self.post(events.Loaded(self.number, await self._completed(report)))

    def _begin_guard(self) -> None:
        """One at a time: a stage may have ended just as its window was extended."""
        self._end_guard()
        self._guard = self._start(self._watch_window)

    def _end_guard(self) -> None:
        """The stage is over in time."""
        if self._guard is not None:
            self._guard.cancel()

    async def _completed(self, report: warm.StageReport) -> warm.StageReport:
        """With what its log says of parts that it does not report, and the memory it holds."""
        running = self._process()
        if running.target.probes.stage is None:
            report = await asyncio.to_thread(lambda: stage_parts.with_log(report, running.log.lines()))
        return stage_parts.with_memory(report, await self._memory())

    async def _prime(self, _: actions.Prime) -> None:
        running, world = self._process(), self.world
        began_s, self._stage = world.clock.now(), "PRIME"
        self._begin_guard()
        self._proof = await warm.prime(
            running.target, world.http, world.clock, self.run.warmup, self._on_progress,
            watch=running.compiles.look, measure=self._memory,
            patience_s=max(warm.PATIENCE_S, self._windows_s.get("PRIME", 0.0)),
        )  # fmt: skip
        self._end_guard()
        self._spent_s["PRIME"] = world.clock.now() - began_s
        self.post(events.Proven(self.number, self._proof))

    async def _memory(self) -> warm.Memory:
        """What the attempt holds now."""
        return warm.Memory(self._process().tree.usage().resident_bytes, await self._gpu_bytes())

    async def _gpu_bytes(self) -> int | None:
        devices = self.run.gate().devices
        return await asyncio.to_thread(held_bytes, devices, self.world.gpu_use, await self._pids())

    def _on_progress(self, progress: warm.Progress) -> None:
        self.activity = replace(progress, what=masked(progress.what, self._secrets))
        running = self._process()
        if running.lookout.told(progress):
            running.compiles.glance()

    async def _watch_on_window(self, _: actions.ExtendWindow) -> None:
        self._begin_guard()

    async def _watch_window(self) -> None:
        """Posts Stalled once the stage has stood still."""
        running, lookout = self._process(), self._process().lookout
        stall = await lookout.until_still(self._open_window, self._look_wider)
        found = await self._diagnosed(running, None, stall.quiet_s)
        at = self.activity.what if self.activity and self.activity.stage == self._stage else None
        failure = failures.without(failures.stalled(found, stall, at), self._secrets)
        self.post(events.Stalled(self.number, failure, self.world.jitter(), moved=lookout.window.moved))

    def _open_window(self, now: window.Sample) -> window.Window:
        """What processors do is believed longest where nobody wrote how long it may take."""
        length_s = self._windows_s.get(self._stage, self._process().launch.preload_window_s)
        return window.opened(now, length_s, self.run.quiet_s, window.BUSY_S if self.run.learns else length_s)

    async def _look_wider(self) -> int | None:
        running = self._process()
        await self._look_at_shared_memory()
        await self._look_into_container(running)
        return await self._gpu_bytes() if running.lookout.still_s >= _GPU_LOOK_S else None

    async def _look_into_container(self, running: _Running) -> None:
        """So that what it does counts as progress, not what its client does."""
        if running.launch.container is not None:
            inside = await asyncio.to_thread(containers.pids, running.launch.container)
            running.tree.beside = inside[:1]

    async def _register(self, _: actions.Register) -> None:
        running = self._process()
        self._watcher = Watcher(
            running.target, self.world.http, running.tree, running.log, self.world.clock,
            running.compiles, await self._compiles_at_ready(running),
        )  # fmt: skip
        await warm.register(running.target, self.world.http)
        await self._turn.release()
        await self._remember(running)
        self.post(events.Registered(self.number))

    async def _compiles_at_ready(self, running: _Running) -> Seen:
        """What was seen when the proof ended: what comes after it is late."""
        proven = self._proof.compiles if self._proof else Seen()
        return proven if proven.counts else await running.compiles.look()

    async def _remember(self, running: _Running) -> None:
        """So that another supervisor can take it over; a container ends with us in any case."""
        if not self.world.keeps or self._proof is None or running.launch.container is not None:
            return
        log, tree, groups = running.log, running.tree, self.world.groups
        record = Record(
            self.run.name, self.number, tree.pid, tree.identity.start_ticks, processes.boot_id(), self._cookie,
            running.launch.env.get(TOKEN), log.start_bytes, asdict(self._proof), self.run.spec, self.run.placed,
            str(groups.folder) if groups and tree.group else None,
        )  # fmt: skip
        await asyncio.to_thread(self.world.keep, self.run, tree.identity)
        with contextlib.suppress(OSError):  # a full disk: it is not taken over then, but started anew
            await asyncio.to_thread(self.world.records.write, record)
            self.kept = True

    async def _watch(self, _: actions.Watch) -> None:
        self._end_guard()
        self._start(self._watch_ranks)
        if self._spent_s:
            boot = history.Boot(self.run.alike, self._cache, dict(self._spent_s))
            await asyncio.to_thread(history.add, self.run.history, boot)
        # It is left alone for what is measured, but not for long: it may hang just now.
        await asyncio.wait({self._start(self._measure)}, timeout=self.world.watch_s)
        if self._watcher is not None:
            self._start(self._watch_deep, self._watcher)
            await self._watch_on(self._watcher)

    async def _measure(self) -> None:
        first = await self._first_request()
        await self._check_placement()
        late = await self._tell_late_compiles(self._watcher) if self._watcher else None
        self.post(events.Measured(self.number, first, compiles_observed=late is not None))

    async def _tell_late_compiles(self, watcher: Watcher) -> Late | None:
        late = await watcher.late_compiles()
        if late and late.count:
            self.post(events.LateCompile(self.number, late.count, late.new))
        return late

    async def _watch_on(self, watcher: Watcher) -> None:
        checked_s = self.world.clock.now()
        while True:
            await self._tell_late_compiles(watcher)
            await self.world.clock.sleep(self.world.watch_s)
            failure = await watcher.look()
            if failure:
                await self._is_broken(failure)
                return
            if self.world.clock.now() - checked_s >= self.world.placement_s:
                await self._check_placement()
                checked_s = self.world.clock.now()

    async def _watch_deep(self, watcher: Watcher) -> None:
        while watcher.asks_deep:
            await self.world.clock.sleep(watcher.deep_pause_s(self.world.deep_s, self.world.jitter()))
            failure = await watcher.ask(self.world.deep_s)
            if failure:
                await self._is_broken(failure)
                return

    async def _is_broken(self, failure: Failure) -> None:
        """Ends the attempt of a process that lives but does not work; its log may say why."""
        self._fail(failures.not_working(failure, await self._diagnosed(self._process(), None)))

    async def _check_placement(self) -> None:
        await self._look_at_shared_memory()
        seen = await asyncio.to_thread(look, self.run, await self._pids(), self.world.gpu_use)
        self.post(events.Checked(self.number, placement.judge(seen, self.run.expected)))

    async def _pids(self) -> set[int]:
        """Every process of the attempt, those in a container too."""
        running = self._process()
        pids = {member.pid for member in running.tree.members()}
        if container := running.launch.container:
            pids |= set(await asyncio.to_thread(containers.pids, container))
        return pids

    async def _look_at_shared_memory(self) -> None:
        pids = [member.pid for member in self._process().tree.members()]
        await asyncio.to_thread(self._leftovers.look, pids)

    async def _first_request(self) -> warm.FirstRequest | None:
        if self._proof is None:
            return None
        try:
            return await warm.first_request(self._process().target, self.world.http, self._proof, self.world.clock)
        except warm.WarmupError as error:
            self.note(masked(f"the first request after SERVING went wrong: {error.what}", self._secrets))
            return None

    async def _retry_later(self, action: actions.ScheduleRetry) -> None:
        await self.world.clock.sleep(action.delay_s)
        self.post(events.BackoffElapsed(self.number))

    def _begin_end(self, action: actions.End) -> None:
        if self._ending is not None:
            self._ending.cancel()
        self.kept = False
        self._cancel_work()
        self._ending = self._start(self._end, action)

    def _cancel_work(self) -> None:
        for task in tuple(self._work):
            task.cancel()

    async def _end(self, action: actions.End) -> None:
        await self._prepare_end(action)
        stuck = await self._take_down(self._running, action) if self._running else None
        if stuck:
            self.post(events.Stuck(self.number, stuck))
            return
        if action.clean:
            await self._clean()
        await self._turn.release()
        self.post(events.Vacated(self.number))

    async def _prepare_end(self, action: actions.End) -> None:
        """It is not to be taken over any more; and whoever starts on its GPUs does not measure what is about to go."""
        with contextlib.suppress(OSError):
            await asyncio.to_thread(self.world.records.remove, self.run.name)
        if self._running and action.planned and not self._turn.held:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._turn.take(), _STOP_LOCK_S)

    async def _clean(self) -> None:
        removed = await asyncio.to_thread(self._leftovers.clean)
        self.note(f"cleaned before the next attempt: {', '.join(removed) or 'nothing was left behind'}")

    async def _take_down(self, running: _Running, action: actions.End) -> Failure | None:
        """What could not be ended, normally nothing. A container ends first: its client only shows it."""
        tree, container = running.tree, running.launch.container
        if action.drain_s is not None and tree.exit_status is None:
            await self._drain(running, action.drain_s)
        if container is not None and action.grace_s is not None:
            await asyncio.to_thread(containers.stop, container, self._cookie, action.grace_s)
        left = await (tree.kill() if action.grace_s is None or container else tree.stop(action.grace_s))
        if left:
            return failures.stuck([each.pid for each in left])
        still = await asyncio.to_thread(containers.remove, container, self._cookie) if container else None
        return Failure(still, "stop", "stuck") if still else None

    async def _drain(self, running: _Running, drain_s: float) -> None:
        try:
            await warm.drain(running.target, self.world.http, drain_s)
        except warm.WarmupError as error:
            self.note(masked(f"did not drain: {error.what}", self._secrets))

    def _process(self) -> _Running:
        if self._running is None:
            raise RuntimeError("an action that needs a process came before it")
        return self._running
