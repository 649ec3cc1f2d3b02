"""One instance's life as a pure function: ``step(instance, event, now_s)`` says what is true next and what to do.

The four stages belong to an attempt; a new attempt begins at INIT with the next number. Every event carries the
number of the attempt it speaks of, and one of an earlier attempt changes nothing.

========  =========================================  =====================================================
state     what is true                               left by
========  =========================================  =====================================================
INIT      waits for its gates, then reserves         Reserved, Blocked, Failed, requests
PRELOAD   the process runs and loads                 Loaded, Stalled, Failed, requests
PRIME     every shape runs, then the proof           Registered (after Proven), Stalled, Failed, requests
SERVING   registered: it receives traffic            Failed, LateCompile (with ``drain``), requests
DRAINING  the attempt ends; its tree is taken down   Vacated, Stuck
BACKOFF   nothing runs; a retry is due               BackoffElapsed, requests
STOPPED   nothing runs, as asked                     RestartRequested
FAILED    nothing is tried any more; says why        RestartRequested
========  =========================================  =====================================================
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Literal

from toolkit.supervise import placement
from toolkit.supervise.placement import Placement
from toolkit.warm.compiles import Compile, in_words
from toolkit.warm.model import CanaryResult, FirstRequest, Proof, StageReport


class State(str, Enum):
    INIT = "INIT"
    PRELOAD = "PRELOAD"
    PRIME = "PRIME"
    SERVING = "SERVING"
    DRAINING = "DRAINING"
    STOPPED = "STOPPED"
    BACKOFF = "BACKOFF"
    FAILED = "FAILED"


INIT, PRELOAD, PRIME, SERVING = STAGES = (State.INIT, State.PRELOAD, State.PRIME, State.SERVING)
STARTING = (INIT, PRELOAD, PRIME)
AT_REST = (State.STOPPED, State.FAILED)
LEGAL_ARROWS = frozenset({(INIT, PRELOAD), (PRELOAD, PRIME), (PRIME, SERVING), (PRELOAD, INIT), (SERVING, INIT)})
ILLEGAL_ARROWS = tuple((a, b) for a in STAGES for b in STAGES if a is not b and (a, b) not in LEGAL_ARROWS)

_KEPT_LATE = 20  # of the compiles after READY, the last ones are shown

Verdict = Literal["retry", "retry_after_cleanup", "wait", "stop", "none"]


@dataclass(frozen=True)
class Failure:
    """Why an attempt ended; ``verdict`` says whether another one can help (``stop``: it cannot)."""

    summary: str
    verdict: Verdict = "retry"
    kind: str = "exit"
    culprit: str | None = None
    line: str | None = None
    advice: str | None = None
    canary: CanaryResult | None = None
    first_token_ms: tuple[float, ...] = ()


@dataclass(frozen=True)
class FailureRecord:
    """A failure with the attempt and state it ended, and when (seconds of the supervisor's clock)."""

    failure: Failure
    attempt: int
    state: State
    at_s: float


@dataclass(frozen=True)
class Policy:
    """How often and how soon an instance is tried again, and how it is stopped."""

    max_restarts: int = 5
    window_s: float = 600.0
    backoff_first_s: float = 0.5
    backoff_cap_s: float = 30.0
    grace_s: float = 10.0
    late_compile: Literal["warn", "drain"] = "warn"
    max_waits: int = 3


@dataclass(frozen=True)
class StageTime:
    """When an attempt was in one stage; ``left_s`` None: it still is."""

    state: State
    entered_s: float
    left_s: float | None = None


@dataclass(frozen=True)
class Ending:
    """How an attempt ends: the stage it was in, and what comes when its tree is gone."""

    then: Literal["restart", "retry", "stop", "fail"]
    left: State
    retry_at_s: float = 0.0


@dataclass(frozen=True)
class Instance:
    """All that is known of one service's process tree; ``begun``: this attempt's gates have opened."""

    name: str
    policy: Policy = Policy()
    state: State = State.INIT
    attempt: int = 1
    since_s: float = 0.0
    begun: bool = False
    pid: int | None = None
    stages: tuple[StageTime, ...] = ()
    report: StageReport | None = None
    proof: Proof | None = None
    first: FirstRequest | None = None
    measured: bool = False
    ready_s: float | None = None
    late_compiles: int | None = None
    late: tuple[Compile, ...] = ()
    windows_s: Mapping[str, float] = field(default_factory=dict)
    placement: Placement | None = None
    waits: int = 0
    ending: Ending | None = None
    restarts: int = 0
    recent_restarts_s: tuple[float, ...] = ()
    last_failure: FailureRecord | None = None


# Events: what happened, or what somebody asks for.


@dataclass(frozen=True)
class Event:
    attempt: int


@dataclass(frozen=True)
class Begin(Event):
    """The gates are open."""


@dataclass(frozen=True)
class Blocked(Event):
    """A gate will never open."""

    failure: Failure


@dataclass(frozen=True)
class Reserved(Event):
    """Everything the instance needs is held."""


@dataclass(frozen=True)
class Spawned(Event):
    """The process runs; its log begins at ``log_start_bytes``. ``windows_s``: how long each stage may take."""

    pid: int
    log_start_bytes: int = 0
    windows_s: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Loaded(Event):
    report: StageReport


@dataclass(frozen=True)
class Proven(Event):
    proof: Proof


@dataclass(frozen=True)
class Registered(Event):
    """The instance answers everybody."""


@dataclass(frozen=True)
class Measured(Event):
    """The first ordinary request was sent; ``first`` None: it could not be measured.

    ``compiles_observed``: the instance tells how often it compiled.
    """

    first: FirstRequest | None
    compiles_observed: bool = False


@dataclass(frozen=True)
class Checked(Event):
    """Threads, pages and devices of the instance were compared with the plan."""

    placement: Placement


@dataclass(frozen=True)
class LateCompile(Event):
    """``count`` compiles after READY, in all; ``new``: what was seen of them since the last time."""

    count: int
    new: tuple[Compile, ...] = ()


@dataclass(frozen=True)
class Stalled(Event):
    """A start stands still; the process lives. ``jitter`` from 0 to 1.

    ``moved``: there was progress since it was last said to, so that it has not been waited for yet.
    """

    failure: Failure
    jitter: float = 0.0
    moved: bool = False


@dataclass(frozen=True)
class Failed(Event):
    """The attempt cannot go on. ``jitter`` from 0 to 1."""

    failure: Failure
    jitter: float = 0.0


@dataclass(frozen=True)
class Vacated(Event):
    """Nothing of the attempt's tree is left and its reservation is given back."""


@dataclass(frozen=True)
class Stuck(Event):
    """The tree could not be taken down."""

    failure: Failure


@dataclass(frozen=True)
class BackoffElapsed(Event):
    """The wait before the next attempt is over."""


@dataclass(frozen=True)
class StopRequested(Event):
    """Somebody wants it stopped; ``force``: at once, without drain or grace."""

    force: bool = False


@dataclass(frozen=True)
class RestartRequested(Event):
    """Somebody wants a new attempt."""


# Actions: what the caller performs next, in order.


@dataclass(frozen=True)
class Action:
    """Something to perform."""


@dataclass(frozen=True)
class Reserve(Action):
    """Hold ports and devices; answer Reserved or Failed."""


@dataclass(frozen=True)
class Spawn(Action):
    """Start the process; answer Spawned or Failed."""


@dataclass(frozen=True)
class WaitLoaded(Action):
    """Wait until PRELOAD is over; answer Loaded, Stalled or Failed."""


@dataclass(frozen=True)
class ExtendWindow(Action):
    """Wait for one more window; answer Stalled again when it passes."""


@dataclass(frozen=True)
class Prime(Action):
    """Run every shape and the proof; answer Proven, Stalled or Failed."""


@dataclass(frozen=True)
class Register(Action):
    """Let it answer everybody; answer Registered or Failed."""


@dataclass(frozen=True)
class Watch(Action):
    """Send the first ordinary request (answer Measured), then watch health and late compiles."""


@dataclass(frozen=True)
class End(Action):
    """Take the attempt down; answer Vacated or Stuck.

    Drain for ``drain_s``, TERM and wait ``grace_s`` (None: skip that step), KILL what is left, give back what it held.
    ``clean``: then remove what it left behind that would make the next attempt fail.
    """

    drain_s: float | None = None
    grace_s: float | None = None
    clean: bool = False

    @property
    def planned(self) -> bool:
        """It is ended because somebody wants it, not because it failed."""
        return self.grace_s is not None


@dataclass(frozen=True)
class ScheduleRetry(Action):
    """Answer BackoffElapsed after ``delay_s``."""

    delay_s: float


@dataclass(frozen=True)
class CancelRetry(Action):
    """The retry is no longer wanted."""


@dataclass(frozen=True)
class Moved(Action):
    """Tell: the state changed."""

    source: State
    target: State
    reason: str


@dataclass(frozen=True)
class Refused(Action):
    """Tell: an illegal arrow between stages was asked for and not taken."""

    source: State
    target: State
    reason: str


@dataclass(frozen=True)
class Drifted(Action):
    """Tell: something is not where it was planned, which it was before."""

    text: str


@dataclass(frozen=True)
class Compiled(Action):
    """Tell: something was compiled after READY, ``count`` times in all."""

    count: int
    new: tuple[Compile, ...] = ()


@dataclass(frozen=True)
class Log(Action):
    """Tell a person."""

    text: str


Step = tuple[Instance, tuple[Action, ...]]


def step(instance: Instance, event: Event, now_s: float) -> Step:
    """The instance after this event, and the actions to perform in order; nothing for another attempt's event."""
    if event.attempt != instance.attempt:
        return instance, ()
    return _HANDLERS[type(event)](instance, event, now_s)


def backoff_s(policy: Policy, recent: int, jitter: float) -> float:
    """Seconds before the next attempt after ``recent`` restarts: doubled each time up to the cap, half of it jitter."""
    full = min(policy.backoff_cap_s, policy.backoff_first_s * 2.0 ** min(recent, 32))
    return full * (0.5 + jitter / 2)


def recent_restarts(instance: Instance, now_s: float) -> tuple[float, ...]:
    """Times of the restarts that still count against the budget."""
    return tuple(at for at in instance.recent_restarts_s if at > now_s - instance.policy.window_s)


def _begin(instance: Instance, _: Begin, now_s: float) -> Step:
    if instance.state is not INIT or instance.begun:
        return instance, ()
    return replace(instance, begun=True, since_s=now_s, stages=(StageTime(INIT, now_s),)), (Reserve(),)


def _blocked(instance: Instance, event: Blocked, now_s: float) -> Step:
    if instance.state is not INIT or instance.begun:
        return instance, ()
    return _move(_record(instance, event.failure, now_s), State.FAILED, now_s, event.failure.summary)


def _reserved(instance: Instance, _: Reserved, now_s: float) -> Step:
    if instance.state is INIT and not instance.begun:
        return instance, (Log("reserved before its gates opened: not taken to PRELOAD"),)
    return _arrow(instance, PRELOAD, now_s, "reserved", Spawn())


def _spawned(instance: Instance, event: Spawned, _: float) -> Step:
    if instance.state is not PRELOAD or instance.pid is not None:
        return instance, ()
    return replace(instance, pid=event.pid, windows_s=event.windows_s), (WaitLoaded(),)


def _loaded(instance: Instance, event: Loaded, now_s: float) -> Step:
    after, actions = _arrow(instance, PRIME, now_s, "loaded", Prime())
    return (replace(after, report=event.report, waits=0) if after is not instance else after), actions


def _proven(instance: Instance, event: Proven, _: float) -> Step:
    if instance.state is not PRIME or instance.proof is not None:
        return instance, ()
    return replace(instance, proof=event.proof), (Register(),)


def _registered(instance: Instance, _: Registered, now_s: float) -> Step:
    if instance.state is PRIME and instance.proof is None:
        return instance, (Log("registered before its proof: not taken as SERVING"),)
    after, actions = _arrow(instance, SERVING, now_s, "registered", Watch())
    return (replace(after, ready_s=now_s) if after is not instance else after), actions


def _measured(instance: Instance, event: Measured, _: float) -> Step:
    if instance.state is not SERVING:
        return instance, ()
    late = instance.late_compiles or 0 if event.compiles_observed else instance.late_compiles
    return replace(instance, first=event.first, measured=True, late_compiles=late), ()


def _checked(instance: Instance, event: Checked, _: float) -> Step:
    if instance.state is not SERVING:
        return instance, ()
    told = placement.news(instance.placement, event.placement)
    return replace(instance, placement=event.placement), tuple(Drifted(text) for text in told)


def _late_compile(instance: Instance, event: LateCompile, now_s: float) -> Step:
    if instance.state is not SERVING or event.count <= (instance.late_compiles or 0):
        return instance, ()
    told = Compiled(event.count, event.new)
    late = (*instance.late, *event.new)[-_KEPT_LATE:]
    after = replace(instance, late_compiles=event.count, late=late)
    if instance.policy.late_compile == "warn":
        return after, (told,)
    why = _why_drained(event)
    drained, actions = _end_serving(_record(after, why, now_s), "restart", now_s, why.summary)
    return drained, (told, *actions)


def _why_drained(event: LateCompile) -> Failure:
    seen = f": {in_words(event.new)}" if event.new else ""
    key = next((each.key for each in event.new if each.key), None)
    return Failure(f"compiled after READY ({event.count} in all){seen}", "retry", "late_compile", culprit=key)


def _stalled(instance: Instance, event: Stalled, now_s: float) -> Step:
    if instance.state not in (PRELOAD, PRIME):
        return instance, ()
    waits = 1 if event.moved else instance.waits + 1
    if event.failure.verdict == "wait" and waits <= instance.policy.max_waits:
        text = f"waits longer ({waits} of {instance.policy.max_waits}): {event.failure.summary}"
        return replace(instance, waits=waits), (ExtendWindow(), Log(text))
    return _fail(instance, event.failure, event.jitter, now_s)


def _failed(instance: Instance, event: Failed, now_s: float) -> Step:
    if instance.state not in STAGES:
        return instance, ()
    return _fail(instance, event.failure, event.jitter, now_s)


def _fail(instance: Instance, failure: Failure, jitter: float, now_s: float) -> Step:
    given_up = _reason_to_give_up(instance, failure, now_s)
    if given_up:
        failed = _record(instance, replace(failure, summary=given_up), now_s)
        return _draining(failed, Ending("fail", instance.state), now_s, given_up, End())
    delay_s = backoff_s(instance.policy, len(recent_restarts(instance, now_s)), jitter)
    ending = Ending("retry", instance.state, now_s + delay_s)
    end = End(clean=failure.verdict == "retry_after_cleanup")
    return _draining(_record(instance, failure, now_s), ending, now_s, failure.summary, end)


def _reason_to_give_up(instance: Instance, failure: Failure, now_s: float) -> str | None:
    if failure.verdict == "stop":
        return failure.summary
    used, policy = len(recent_restarts(instance, now_s)), instance.policy
    if used < policy.max_restarts:
        return None
    if not used:
        return failure.summary
    return f"gave up after {used} restarts within {policy.window_s:g} s: {failure.summary}"


def _vacated(instance: Instance, _: Vacated, now_s: float) -> Step:
    if instance.state is State.DRAINING and instance.ending is not None:
        return _ended(instance, instance.ending, now_s)
    if instance.state in (PRELOAD, SERVING):
        return _next_attempt(instance, now_s, "released" if instance.state is PRELOAD else "drained")
    return _arrow(instance, INIT, now_s, "vacated")


def _ended(instance: Instance, ending: Ending, now_s: float) -> Step:
    if ending.then == "restart":
        return _next_attempt(instance, now_s, "drained" if ending.left is SERVING else "released")
    if ending.then == "retry":
        delay_s = max(0.0, ending.retry_at_s - now_s)
        after, told = _move(instance, State.BACKOFF, now_s, f"next attempt in {delay_s:.1f} s")
        return after, (*told, ScheduleRetry(delay_s))
    if ending.then == "stop":
        return _move(instance, State.STOPPED, now_s, "stopped as asked")
    failure = instance.last_failure
    return _move(instance, State.FAILED, now_s, failure.failure.summary if failure else "failed")


def _stuck(instance: Instance, event: Stuck, now_s: float) -> Step:
    if instance.state is not State.DRAINING:
        return instance, ()
    return _move(_record(instance, event.failure, now_s), State.FAILED, now_s, event.failure.summary)


def _backoff_elapsed(instance: Instance, _: BackoffElapsed, now_s: float) -> Step:
    if instance.state is not State.BACKOFF:
        return instance, ()
    recent = (*recent_restarts(instance, now_s), now_s)
    counted = replace(instance, restarts=instance.restarts + 1, recent_restarts_s=recent)
    return _next_attempt(counted, now_s, "back-off is over")


def _stop_requested(instance: Instance, event: StopRequested, now_s: float) -> Step:
    state, reason = instance.state, "stop was asked for"
    if state in AT_REST:
        return instance, ()
    if state is State.BACKOFF:
        after, told = _move(instance, State.STOPPED, now_s, reason)
        return after, (CancelRetry(), *told)
    if state is State.DRAINING:
        gives_up = instance.ending is not None and instance.ending.then == "fail"
        return instance if gives_up else _redirect(instance, "stop"), ((End(),) if event.force else ())
    if state is INIT and not instance.begun:
        return _move(instance, State.STOPPED, now_s, reason)
    if event.force:
        return _draining(instance, Ending("stop", state), now_s, reason, End())
    return _end_stage(instance, "stop", now_s, reason)


def _restart_requested(instance: Instance, _: RestartRequested, now_s: float) -> Step:
    state, reason = instance.state, "restart was asked for"
    if state is INIT and not instance.begun:
        return instance, ()
    if state is State.BACKOFF:
        after, told = _next_attempt(instance, now_s, reason)
        return after, (CancelRetry(), *told)
    if state in AT_REST:
        return _next_attempt(replace(instance, recent_restarts_s=()), now_s, reason)
    if state is State.DRAINING:
        return _redirect(instance, "restart"), ()
    return _end_stage(instance, "restart", now_s, reason)


def _redirect(instance: Instance, then: Literal["restart", "stop"]) -> Instance:
    left = instance.ending.left if instance.ending else instance.state
    return replace(instance, ending=Ending(then, left))


def _end_stage(instance: Instance, then: Literal["restart", "stop"], now_s: float, reason: str) -> Step:
    if instance.state is SERVING:
        return _end_serving(instance, then, now_s, reason)
    return _draining(instance, Ending(then, instance.state), now_s, reason, End(grace_s=instance.policy.grace_s))


def _end_serving(instance: Instance, then: Literal["restart", "stop"], now_s: float, reason: str) -> Step:
    grace_s = instance.policy.grace_s
    return _draining(instance, Ending(then, SERVING), now_s, reason, End(drain_s=grace_s, grace_s=grace_s))


def _draining(instance: Instance, ending: Ending, now_s: float, reason: str, end: End) -> Step:
    after, told = _move(replace(instance, ending=ending), State.DRAINING, now_s, reason)
    return after, (*told, end)


def _next_attempt(instance: Instance, now_s: float, reason: str) -> Step:
    fresh = Instance(
        instance.name,
        instance.policy,
        attempt=instance.attempt + 1,
        since_s=now_s,
        restarts=instance.restarts,
        recent_restarts_s=instance.recent_restarts_s,
        last_failure=instance.last_failure,
    )
    return fresh, (Moved(instance.state, INIT, reason),)


def _arrow(instance: Instance, target: State, now_s: float, reason: str, *then: Action) -> Step:
    """Takes a stage arrow when it is legal; refuses it when it is not; nothing outside the stages."""
    source = instance.state
    if source not in STAGES or source is target:
        return instance, ()
    if (source, target) not in LEGAL_ARROWS:
        return instance, (Refused(source, target, f"'{reason}' came in {source.value}, which {_leads(source)}"),)
    after, told = _move(instance, target, now_s, reason)
    return replace(after, stages=(*after.stages, StageTime(target, now_s))), (*told, *then)


def _leads(source: State) -> str:
    targets = [b.value for a, b in sorted(LEGAL_ARROWS) if a is source]
    return f"leads only to {' or '.join(targets)}"


def _move(instance: Instance, target: State, now_s: float, reason: str) -> Step:
    over = target in (State.STOPPED, State.BACKOFF, State.FAILED)
    after = replace(
        instance,
        state=target,
        since_s=now_s,
        stages=_closed(instance.stages, now_s),
        pid=None if over else instance.pid,
        ready_s=instance.ready_s if target is SERVING else None,
        ending=None if over else instance.ending,
    )
    return after, (Moved(instance.state, target, reason),)


def _closed(stages: tuple[StageTime, ...], now_s: float) -> tuple[StageTime, ...]:
    if not stages or stages[-1].left_s is not None:
        return stages
    return (*stages[:-1], replace(stages[-1], left_s=now_s))


def _record(instance: Instance, failure: Failure, now_s: float) -> Instance:
    return replace(instance, last_failure=FailureRecord(failure, instance.attempt, instance.state, now_s))


_HANDLERS: Mapping[type[Event], Callable[[Instance, Any, float], Step]] = {
    Begin: _begin,
    Blocked: _blocked,
    Reserved: _reserved,
    Spawned: _spawned,
    Loaded: _loaded,
    Proven: _proven,
    Registered: _registered,
    Measured: _measured,
    Checked: _checked,
    LateCompile: _late_compile,
    Stalled: _stalled,
    Failed: _failed,
    Vacated: _vacated,
    Stuck: _stuck,
    BackoffElapsed: _backoff_elapsed,
    StopRequested: _stop_requested,
    RestartRequested: _restart_requested,
}
