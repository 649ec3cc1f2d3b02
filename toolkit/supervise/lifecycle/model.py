"""The nouns: what is known of an instance, what its policy is, and how its attempts ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

from toolkit.supervise.placement import Placement
from toolkit.warm.compiles import Compile
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
    """All that is known of one service's process tree.

    ``begun``: this attempt's gates have opened. ``recent_drains_s``: when it was drained for a late compile.
    """

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
    recent_drains_s: tuple[float, ...] = ()
    last_failure: FailureRecord | None = None
