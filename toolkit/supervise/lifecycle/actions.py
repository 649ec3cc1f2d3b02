"""Actions: what the caller performs next, in order."""

from __future__ import annotations

from dataclasses import dataclass

from toolkit.supervise.lifecycle.model import State
from toolkit.warm.compiles import Compile


@dataclass(frozen=True)
class Action:
    """Something to perform."""


@dataclass(frozen=True)
class Reserve(Action):
    """Hold ports and devices; answer Reserved or Failed."""


@dataclass(frozen=True)
class Spawn(Action):
    """Start the process; answer Spawned or Failed."""


@dataclass(frozen=True)
class WaitLoaded(Action):
    """Wait until PRELOAD is over; answer Loaded, Stalled or Failed."""


@dataclass(frozen=True)
class ExtendWindow(Action):
    """Wait for one more window; answer Stalled again when it passes."""


@dataclass(frozen=True)
class Prime(Action):
    """Run every shape and the proof; answer Proven, Stalled or Failed."""


@dataclass(frozen=True)
class Register(Action):
    """Let it answer everybody; answer Registered or Failed."""


@dataclass(frozen=True)
class Watch(Action):
    """Send the first ordinary request (answer Measured), then watch health and late compiles."""


@dataclass(frozen=True)
class End(Action):
    """Take the attempt down; answer Vacated or Stuck.

    Drain for ``drain_s``, TERM and wait ``grace_s`` (None: skip that step), KILL what is left.
    ``clean``: then remove what it left behind that would make the next attempt fail.
    """

    drain_s: float | None = None
    grace_s: float | None = None
    clean: bool = False

    @property
    def planned(self) -> bool:
        """It is ended because somebody wants it, not because it failed."""
        return self.grace_s is not None


@dataclass(frozen=True)
class ScheduleRetry(Action):
    """Answer BackoffElapsed after ``delay_s``."""

    delay_s: float


@dataclass(frozen=True)
class CancelRetry(Action):
    """The retry is no longer wanted."""


@dataclass(frozen=True)
class Moved(Action):
    """Tell: the state changed."""

    source: State
    target: State
    reason: str


@dataclass(frozen=True)
class Refused(Action):
    """Tell: an illegal arrow between stages was asked for and not taken."""

    source: State
    target: State
    reason: str


@dataclass(frozen=True)
class Drifted(Action):
    """Tell: something is not where it was planned, which it was before."""

    text: str


@dataclass(frozen=True)
class Compiled(Action):
    """Tell: something was compiled after READY, ``count`` times in all."""

    count: int
    new: tuple[Compile, ...] = ()


@dataclass(frozen=True)
class Log(Action):
    """Tell a person."""

    text: str
