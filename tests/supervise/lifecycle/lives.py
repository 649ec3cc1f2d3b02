"""One event of each kind, an instance in each state, and what comes of several events."""

from __future__ import annotations

from dataclasses import replace

from toolkit.affinity import Placement as Pages
from toolkit.affinity import Report
from toolkit.supervise.lifecycle import STAGES, Ending, Event, Failure, Instance, Policy, StageTime, State, step
from toolkit.supervise.lifecycle.events import (
    BackoffElapsed,
    Begin,
    Blocked,
    Checked,
    Failed,
    LateCompile,
    Loaded,
    Measured,
    Proven,
    Registered,
    Reserved,
    RestartRequested,
    Spawned,
    Stalled,
    StopRequested,
    Stuck,
    Vacated,
)
from toolkit.supervise.placement import Placement
from toolkit.warm.model import FirstRequest, Proof, StageReport

PROOF = Proof(None, (), 1.0, 2.0, 0, (), 0.5)
REPORT = StageReport({"context": 0.1, "weights": 0.2, "kv_cache": None, "tokenizer": None})
BROKEN = Failure("it broke")
HOPELESS = Failure("wrong GPU", verdict="stop")
LOCKED = Failure("a stale lock", verdict="retry_after_cleanup")
DOWNLOADS = Failure("downloads", verdict="wait")
PLACED = Placement(Report(0, (), ()), Pages({}, None, ""))
POLICY = Policy(max_restarts=2, window_s=100.0, backoff_first_s=1.0, backoff_cap_s=8.0, grace_s=5.0)

EVENTS: dict[str, Event] = {
    "Begin": Begin(1),
    "Blocked": Blocked(1, Failure("llm failed", "stop", "dependency")),
    "Reserved": Reserved(1),
    "Spawned": Spawned(1, 4242),
    "Loaded": Loaded(1, REPORT),
    "Proven": Proven(1, PROOF),
    "Registered": Registered(1),
    "Measured": Measured(1, FirstRequest(1.0, 1.0, 1.0)),
    "Checked": Checked(1, PLACED),
    "LateCompile": LateCompile(1, 3),
    "Stalled/wait": Stalled(1, DOWNLOADS),
    "Stalled": Stalled(1, BROKEN),
    "Failed": Failed(1, BROKEN),
    "Failed/clean": Failed(1, LOCKED),
    "Failed/stop": Failed(1, HOPELESS),
    "Vacated": Vacated(1),
    "Stuck": Stuck(1, Failure("pid 7 stays")),
    "BackoffElapsed": BackoffElapsed(1),
    "StopRequested": StopRequested(1),
    "StopRequested/force": StopRequested(1, force=True),
    "RestartRequested": RestartRequested(1),
}


def in_state(column: str) -> Instance:
    """An instance as it is in this state after an ordinary life; ``INIT+`` has begun, ``PRIME+`` has its proof."""
    plain = Instance("llm", POLICY)
    stages = tuple(StageTime(stage, 0.0) for stage in STAGES)
    alive = replace(plain, begun=True, pid=None if column == "PRELOAD" else 4242)
    return {
        "INIT": plain,
        "INIT+": replace(plain, begun=True, stages=stages[:1]),
        "PRELOAD": replace(alive, state=State.PRELOAD, stages=stages[:2]),
        "PRIME": replace(alive, state=State.PRIME, stages=stages[:3]),
        "PRIME+": replace(alive, state=State.PRIME, stages=stages[:3], proof=PROOF),
        "SERVING": replace(alive, state=State.SERVING, stages=stages, proof=PROOF, ready_s=1.0),
        "DRAINING": replace(alive, state=State.DRAINING, ending=Ending("retry", State.SERVING, 1.0)),
        "STOPPED": replace(plain, state=State.STOPPED, begun=True),
        "BACKOFF": replace(plain, state=State.BACKOFF, begun=True),
        "FAILED": replace(plain, state=State.FAILED, begun=True),
    }[column]


def life(instance: Instance, *events: Event, now_s: float = 0.0) -> Instance:
    for event in events:
        instance, _ = step(instance, event, now_s)
    return instance
