"""What goes wrong: whether another attempt can help, and when it comes."""

from __future__ import annotations

from dataclasses import replace

from toolkit.supervise.lifecycle.actions import End, ExtendWindow, Log
from toolkit.supervise.lifecycle.arrows import Step, next_attempt, recorded
from toolkit.supervise.lifecycle.ending import take_down
from toolkit.supervise.lifecycle.events import BackoffElapsed, Failed, Stalled
from toolkit.supervise.lifecycle.model import PRELOAD, PRIME, STAGES, Ending, Failure, Instance, Policy, State


def stalled(instance: Instance, event: Stalled, now_s: float) -> Step:
    if instance.state not in (PRELOAD, PRIME):
        return instance, ()
    waits = 1 if event.moved else instance.waits + 1
    if event.failure.verdict == "wait" and waits <= instance.policy.max_waits:
        text = f"waits longer ({waits} of {instance.policy.max_waits}): {event.failure.summary}"
        return replace(instance, waits=waits), (ExtendWindow(), Log(text))
    return _fail(instance, event.failure, event.jitter, now_s)


def failed(instance: Instance, event: Failed, now_s: float) -> Step:
    if instance.state not in STAGES:
        return instance, ()
    return _fail(instance, event.failure, event.jitter, now_s)


def _fail(instance: Instance, failure: Failure, jitter: float, now_s: float) -> Step:
    given_up = _reason_to_give_up(instance, failure, now_s)
    if given_up:
        final = recorded(instance, replace(failure, summary=given_up), now_s)
        return take_down(final, Ending("fail", instance.state), now_s, given_up, End())
    delay_s = backoff_s(instance.policy, len(recent_restarts(instance, now_s)), jitter)
    ending = Ending("retry", instance.state, now_s + delay_s)
    end = End(clean=failure.verdict == "retry_after_cleanup")
    return take_down(recorded(instance, failure, now_s), ending, now_s, failure.summary, end)


def _reason_to_give_up(instance: Instance, failure: Failure, now_s: float) -> str | None:
    if failure.verdict == "stop":
        return failure.summary
    used, policy = len(recent_restarts(instance, now_s)), instance.policy
    if used < policy.max_restarts:
        return None
    if not used:
        return failure.summary
    return f"gave up after {used} restarts within {policy.window_s:g} s: {failure.summary}"


def backoff_elapsed(instance: Instance, _: BackoffElapsed, now_s: float) -> Step:
    if instance.state is not State.BACKOFF:
        return instance, ()
    recent = (*recent_restarts(instance, now_s), now_s)
    counted = replace(instance, restarts=instance.restarts + 1, recent_restarts_s=recent)
    return next_attempt(counted, now_s, "back-off is over")


def backoff_s(policy: Policy, recent: int, jitter: float) -> float:
    """Seconds before the next attempt after ``recent`` restarts: doubled each time up to the cap, half of it jitter."""
    full = min(policy.backoff_cap_s, policy.backoff_first_s * 2.0 ** min(recent, 32))
    return full * (0.5 + jitter / 2)


def recent_restarts(instance: Instance, now_s: float) -> tuple[float, ...]:
    """Times of the restarts that still count against the budget."""
    return tuple(at for at in instance.recent_restarts_s if at > now_s - instance.policy.window_s)
