"""The four stages, from the gates that open to what is seen of an instance that serves."""

from __future__ import annotations

from dataclasses import replace

from toolkit.supervise import placement
from toolkit.supervise.lifecycle.actions import (
    Compiled,
    Drifted,
    Log,
    Prime,
    Register,
    Reserve,
    Spawn,
    WaitLoaded,
    Watch,
)
from toolkit.supervise.lifecycle.arrows import Step, move, recorded, take
from toolkit.supervise.lifecycle.ending import end_serving
from toolkit.supervise.lifecycle.events import (
    Begin,
    Blocked,
    Checked,
    LateCompile,
    Loaded,
    Measured,
    Proven,
    Registered,
    Reserved,
    Spawned,
)
from toolkit.supervise.lifecycle.model import INIT, PRELOAD, PRIME, SERVING, Failure, Instance, StageTime, State
from toolkit.warm.compiles import in_words

_KEPT_LATE = 20  # of the compiles after READY, the last ones are shown


def begin(instance: Instance, _: Begin, now_s: float) -> Step:
    if instance.state is not INIT or instance.begun:
        return instance, ()
    return replace(instance, begun=True, since_s=now_s, stages=(StageTime(INIT, now_s),)), (Reserve(),)


def blocked(instance: Instance, event: Blocked, now_s: float) -> Step:
    if instance.state is not INIT or instance.begun:
        return instance, ()
    return move(recorded(instance, event.failure, now_s), State.FAILED, now_s, event.failure.summary)


def reserved(instance: Instance, _: Reserved, now_s: float) -> Step:
    if instance.state is INIT and not instance.begun:
        return instance, (Log("reserved before its gates opened: not taken to PRELOAD"),)
    return take(instance, PRELOAD, now_s, "reserved", Spawn())


def spawned(instance: Instance, event: Spawned, _: float) -> Step:
    if instance.state is not PRELOAD or instance.pid is not None:
        return instance, ()
    return replace(instance, pid=event.pid, windows_s=event.windows_s), (WaitLoaded(),)


def loaded(instance: Instance, event: Loaded, now_s: float) -> Step:
    after, actions = take(instance, PRIME, now_s, "loaded", Prime())
    return (replace(after, report=event.report, waits=0) if after is not instance else after), actions


def proven(instance: Instance, event: Proven, _: float) -> Step:
    if instance.state is not PRIME or instance.proof is not None:
        return instance, ()
    return replace(instance, proof=event.proof), (Register(),)


def registered(instance: Instance, _: Registered, now_s: float) -> Step:
    if instance.state is PRIME and instance.proof is None:
        return instance, (Log("registered before its proof: not taken as SERVING"),)
    after, actions = take(instance, SERVING, now_s, "registered", Watch())
    return (replace(after, ready_s=now_s) if after is not instance else after), actions


def measured(instance: Instance, event: Measured, _: float) -> Step:
    if instance.state is not SERVING:
        return instance, ()
    late = instance.late_compiles or 0 if event.compiles_observed else instance.late_compiles
    return replace(instance, first=event.first, measured=True, late_compiles=late), ()


def checked(instance: Instance, event: Checked, _: float) -> Step:
    if instance.state is not SERVING:
        return instance, ()
    told = placement.news(instance.placement, event.placement)
    return replace(instance, placement=event.placement), tuple(Drifted(text) for text in told)


def late_compile(instance: Instance, event: LateCompile, now_s: float) -> Step:
    if instance.state is not SERVING or event.count <= (instance.late_compiles or 0):
        return instance, ()
    told = Compiled(event.count, event.new)
    late = (*instance.late, *event.new)[-_KEPT_LATE:]
    after = replace(instance, late_compiles=event.count, late=late)
    policy = instance.policy
    if policy.late_compile == "warn":
        return after, (told,)
    drains_s = tuple(at for at in instance.recent_drains_s if at > now_s - policy.window_s)
    if len(drains_s) >= max(1, policy.max_restarts):
        return after, (told, Log(f"not drained again: {len(drains_s)} new attempts have compiled after READY too"))
    why = _why_drained(event)
    counted = recorded(replace(after, recent_drains_s=(*drains_s, now_s)), why, now_s)
    drained, actions = end_serving(counted, "restart", now_s, why.summary)
    return drained, (told, *actions)


def _why_drained(event: LateCompile) -> Failure:
    seen = f": {in_words(event.new)}" if event.new else ""
    key = next((each.key for each in event.new if each.key), None)
    return Failure(f"compiled after READY ({event.count} in all){seen}", "retry", "late_compile", culprit=key)
