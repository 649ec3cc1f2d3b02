"""Events: what happened, or what somebody asks for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from toolkit.supervise.lifecycle.model import Failure
from toolkit.supervise.placement import Placement
from toolkit.warm.compiles import Compile
from toolkit.warm.model import FirstRequest, Proof, StageReport


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
    """Nothing of the attempt's tree is left."""


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
