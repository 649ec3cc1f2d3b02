"""How an instance gets from one state to another: the arrows between stages, and the moves beside them."""

from __future__ import annotations

from dataclasses import replace

from toolkit.supervise.lifecycle.actions import Action, Moved, Refused
from toolkit.supervise.lifecycle.model import (
    INIT,
    LEGAL_ARROWS,
    STAGES,
    Failure,
    FailureRecord,
    Instance,
    StageTime,
    State,
)

Step = tuple[Instance, tuple[Action, ...]]


def take(instance: Instance, target: State, now_s: float, reason: str, *then: Action) -> Step:
    """The stage arrow taken when it is legal, ``then`` after it; refused when it is not; nothing outside the stages."""
    source = instance.state
    if source not in STAGES or source is target:
        return instance, ()
    if (source, target) not in LEGAL_ARROWS:
        return instance, (Refused(source, target, f"'{reason}' came in {source.value}, which {_leads(source)}"),)
    after, told = move(instance, target, now_s, reason)
    return replace(after, stages=(*after.stages, StageTime(target, now_s))), (*told, *then)


def _leads(source: State) -> str:
    targets = [b.value for a, b in sorted(LEGAL_ARROWS) if a is source]
    return f"leads only to {' or '.join(targets)}"


def move(instance: Instance, target: State, now_s: float, reason: str) -> Step:
    """The instance in another state; nothing runs of it once it is ``over``."""
    over = target in (State.STOPPED, State.BACKOFF, State.FAILED)
    after = replace(
        instance,
        state=target,
        since_s=now_s,
        stages=_closed(instance.stages, now_s),
        pid=None if over else instance.pid,
        ready_s=None,
        ending=None if over else instance.ending,
    )
    return after, (Moved(instance.state, target, reason),)


def _closed(stages: tuple[StageTime, ...], now_s: float) -> tuple[StageTime, ...]:
    if not stages or stages[-1].left_s is not None:
        return stages
    return (*stages[:-1], replace(stages[-1], left_s=now_s))


def next_attempt(instance: Instance, now_s: float, reason: str) -> Step:
    """A new attempt at INIT; only what counts over attempts stays."""
    fresh = Instance(
        instance.name,
        instance.policy,
        attempt=instance.attempt + 1,
        since_s=now_s,
        restarts=instance.restarts,
        recent_restarts_s=instance.recent_restarts_s,
        recent_drains_s=instance.recent_drains_s,
        last_failure=instance.last_failure,
    )
    return fresh, (Moved(instance.state, INIT, reason),)


def recorded(instance: Instance, failure: Failure, now_s: float) -> Instance:
    """The instance that remembers why this attempt ended."""
    return replace(instance, last_failure=FailureRecord(failure, instance.attempt, instance.state, now_s))
