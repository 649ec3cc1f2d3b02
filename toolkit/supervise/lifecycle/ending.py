"""How attempts end: as asked, and what comes when their tree is gone."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from toolkit.supervise.lifecycle.actions import CancelRetry, End, ScheduleRetry
from toolkit.supervise.lifecycle.arrows import Step, move, next_attempt, recorded, take
from toolkit.supervise.lifecycle.events import RestartRequested, StopRequested, Stuck, Vacated
from toolkit.supervise.lifecycle.model import AT_REST, INIT, PRELOAD, SERVING, Ending, Instance, State


def vacated(instance: Instance, _: Vacated, now_s: float) -> Step:
    if instance.state is State.DRAINING and instance.ending is not None:
        return _ended(instance, instance.ending, now_s)
    if instance.state in (PRELOAD, SERVING):
        return next_attempt(instance, now_s, "released" if instance.state is PRELOAD else "drained")
    return take(instance, INIT, now_s, "vacated")


def _ended(instance: Instance, ending: Ending, now_s: float) -> Step:
    if ending.then == "restart":
        return next_attempt(instance, now_s, "drained" if ending.left is SERVING else "released")
    if ending.then == "retry":
        delay_s = max(0.0, ending.retry_at_s - now_s)
        after, told = move(instance, State.BACKOFF, now_s, f"next attempt in {delay_s:.1f} s")
        return after, (*told, ScheduleRetry(delay_s))
    if ending.then == "stop":
        return move(instance, State.STOPPED, now_s, "stopped as asked")
    failure = instance.last_failure
    return move(instance, State.FAILED, now_s, failure.failure.summary if failure else "failed")


def stuck(instance: Instance, event: Stuck, now_s: float) -> Step:
    if instance.state is not State.DRAINING:
        return instance, ()
    return move(recorded(instance, event.failure, now_s), State.FAILED, now_s, event.failure.summary)


def stop_requested(instance: Instance, event: StopRequested, now_s: float) -> Step:
    state, reason = instance.state, "stop was asked for"
    if state in AT_REST:
        return instance, ()
    if state is State.BACKOFF:
        after, told = move(instance, State.STOPPED, now_s, reason)
        return after, (CancelRetry(), *told)
    if state is State.DRAINING:
        gives_up = instance.ending is not None and instance.ending.then == "fail"
        return instance if gives_up else _redirect(instance, "stop"), ((End(),) if event.force else ())
    if state is INIT and not instance.begun:
        return move(instance, State.STOPPED, now_s, reason)
    if event.force:
        return take_down(instance, Ending("stop", state), now_s, reason, End())
    return _end_stage(instance, "stop", now_s, reason)


def restart_requested(instance: Instance, _: RestartRequested, now_s: float) -> Step:
    state, reason = instance.state, "restart was asked for"
    if state is INIT and not instance.begun:
        return instance, ()
    if state is State.BACKOFF:
        after, told = next_attempt(instance, now_s, reason)
        return after, (CancelRetry(), *told)
    if state in AT_REST:
        return next_attempt(replace(instance, recent_restarts_s=(), recent_drains_s=()), now_s, reason)
    if state is State.DRAINING:
        return _redirect(instance, "restart"), ()
    return _end_stage(instance, "restart", now_s, reason)


def _redirect(instance: Instance, then: Literal["restart", "stop"]) -> Instance:
    left = instance.ending.left if instance.ending else instance.state
    return replace(instance, ending=Ending(then, left))


def _end_stage(instance: Instance, then: Literal["restart", "stop"], now_s: float, reason: str) -> Step:
    if instance.state is SERVING:
        return end_serving(instance, then, now_s, reason)
    return take_down(instance, Ending(then, instance.state), now_s, reason, End(grace_s=instance.policy.grace_s))


def end_serving(instance: Instance, then: Literal["restart", "stop"], now_s: float, reason: str) -> Step:
    """What serves is drained first."""
    grace_s = instance.policy.grace_s
    return take_down(instance, Ending(then, SERVING), now_s, reason, End(drain_s=grace_s, grace_s=grace_s))


def take_down(instance: Instance, ending: Ending, now_s: float, reason: str, end: End) -> Step:
    """The attempt ends: DRAINING, until its tree is gone."""
    after, told = move(replace(instance, ending=ending), State.DRAINING, now_s, reason)
    return after, (*told, end)
