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

from toolkit.supervise.lifecycle.actions import Action
from toolkit.supervise.lifecycle.events import Event
from toolkit.supervise.lifecycle.machine import step
from toolkit.supervise.lifecycle.model import (
    AT_REST,
    ILLEGAL_ARROWS,
    INIT,
    LEGAL_ARROWS,
    PRELOAD,
    PRIME,
    SERVING,
    STAGES,
    STARTING,
    Ending,
    Failure,
    FailureRecord,
    Instance,
    Policy,
    StageTime,
    State,
    Verdict,
)

__all__ = [
    "AT_REST",
    "ILLEGAL_ARROWS",
    "INIT",
    "LEGAL_ARROWS",
    "PRELOAD",
    "PRIME",
    "SERVING",
    "STAGES",
    "STARTING",
    "Action",
    "Ending",
    "Event",
    "Failure",
    "FailureRecord",
    "Instance",
    "Policy",
    "StageTime",
    "State",
    "Verdict",
    "step",
]
