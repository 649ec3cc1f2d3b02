"""The step function: each event to its handler."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from toolkit.supervise.lifecycle import ending, events, failing, stages
from toolkit.supervise.lifecycle.arrows import Step
from toolkit.supervise.lifecycle.events import Event
from toolkit.supervise.lifecycle.model import Instance


def step(instance: Instance, event: Event, now_s: float) -> Step:
    """The instance after this event, and the actions to perform in order; nothing for another attempt's event."""
    if event.attempt != instance.attempt:
        return instance, ()
    return _HANDLERS[type(event)](instance, event, now_s)


_HANDLERS: Mapping[type[Event], Callable[[Instance, Any, float], Step]] = {
    events.Begin: stages.begin,
    events.Blocked: stages.blocked,
    events.Reserved: stages.reserved,
    events.Spawned: stages.spawned,
    events.Loaded: stages.loaded,
    events.Proven: stages.proven,
    events.Registered: stages.registered,
    events.Measured: stages.measured,
    events.Checked: stages.checked,
    events.LateCompile: stages.late_compile,
    events.Stalled: failing.stalled,
    events.Failed: failing.failed,
    events.Vacated: ending.vacated,
    events.Stuck: ending.stuck,
    events.BackoffElapsed: failing.backoff_elapsed,
    events.StopRequested: ending.stop_requested,
    events.RestartRequested: ending.restart_requested,
}
