"""What is told of an instance's life: to the event log, the metrics, and as spans."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from toolkit.supervise import stage_parts, telemetry
from toolkit.supervise.journal import Journal
from toolkit.supervise.lifecycle import STARTING, Action, Event, Instance, State, events
from toolkit.supervise.lifecycle.actions import Compiled, Drifted, Log, Moved, Refused
from toolkit.supervise.metrics import Metrics
from toolkit.supervise.telemetry import Telemetry
from toolkit.warm.compiles import Compile
from toolkit.warm.model import Clock


@dataclass(frozen=True)
class Chronicle:
    """``journal`` gets everything, ``metrics`` what is counted, ``spans`` the starts that came to an end."""

    journal: Journal
    metrics: Metrics
    spans: Telemetry
    clock: Clock

    def happened(self, event: Event, after: Instance) -> None:
        """An event was taken; ``after`` is what is true now."""
        if isinstance(event, events.Spawned):
            facts = {"pid": event.pid, "log_start_bytes": event.log_start_bytes}
            self.journal.tell("spawned", after.name, event.attempt, **facts)
        elif isinstance(event, (events.Loaded, events.Proven)):
            self._parts(after)

    def _parts(self, instance: Instance) -> None:
        """What the parts of the stage that is over took."""
        found = stage_parts.of(instance)
        for part in found:
            if part.stage is found[-1].stage:
                facts = {**asdict(part), "stage": part.stage.value, "part": part.name}
                del facts["name"]
                self.journal.tell("part", instance.name, instance.attempt, **facts)

    def told(self, action: Action, before: Instance, after: Instance) -> bool:
        """True when the action is nothing but to be told, and has been."""
        name, number = before.name, before.attempt
        if isinstance(action, (Drifted, Compiled, Moved, Refused)):
            self.metrics.count(name, action)
        if isinstance(action, (Log, Drifted)):
            self.journal.tell("log" if isinstance(action, Log) else "drift", name, number, text=action.text)
        elif isinstance(action, Compiled):
            for each in action.new or (Compile("unknown", action.count),):
                self.journal.tell("late_compile", name, number, **asdict(each), total=action.count)
        elif isinstance(action, (Moved, Refused)):
            kind = "transition" if isinstance(action, Moved) else "illegal_transition"
            self.journal.tell(kind, name, number, **_arrow(action), reason=action.reason)
            if isinstance(action, Moved):
                self._trace(action, after)
        else:
            return False
        return True

    def _trace(self, moved: Moved, after: Instance) -> None:
        """A start that came to its end, good or bad, as spans."""
        failed = moved.target is State.DRAINING and moved.source in STARTING
        if failed or moved.target is State.SERVING:
            error = moved.reason if failed else None
            self.spans.send(telemetry.of_attempt(after, self.clock.now(), error))


def _arrow(moved: Moved | Refused) -> dict[str, Any]:
    return {"from": moved.source.value, "to": moved.target.value}
