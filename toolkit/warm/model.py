"""What the warm-up is told and what it says back, as frozen data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from toolkit.canaries import Answer
from toolkit.errors import ToolkitError
from toolkit.runtimes.base import Probes
from toolkit.warm.compiles import Seen

PARTS = ("context", "weights", "kv_cache", "tokenizer")
PRIME_PARTS = ("compile", "canary", "proof")

Sign = Literal["step", "not_yet", "nothing"]


class WarmupError(ToolkitError):
    """Why PRELOAD or PRIME ended.

    ``code``: canary_wrong, never_steady, compile_during_proof, request_failed or loaded_timeout. ``details`` holds
    ``canary`` (ok, expected, got) when the answer was wrong, ``first_token_ms`` when it never became steady.
    """


class Clock(Protocol):
    """Time as the warm-up sees it; seconds from an arbitrary start that never run backwards."""

    def now(self) -> float:
        """Seconds now."""

    async def sleep(self, seconds: float) -> None:
        """Returns after ``seconds``."""


@dataclass(frozen=True)
class Target:
    """One instance: where it listens, what to ask, and (for log probes) whether its log has said what matches."""

    base_url: str
    probes: Probes
    log_says: Callable[[str], bool] | None = None


@dataclass(frozen=True)
class Progress:
    """Where a stage stands, told when something changed; ``total`` None: how much there is in all is unknown.

    ``sign``: it is a ``step`` forward, or the program answers that it is ``not_yet`` ready (told each time), or
    ``nothing`` of the kind.
    """

    stage: Literal["PRELOAD", "PRIME"]
    done: int
    total: int | None
    what: str
    sign: Sign = "step"


OnProgress = Callable[[Progress], None]


@dataclass(frozen=True)
class StageReport:
    """What PRELOAD did: seconds per part (``PARTS``; None: not told), and what the server counts.

    ``host_bytes`` and ``gpu_bytes``: how much memory each part added, where that is told.
    """

    parts: Mapping[str, float | None]
    bytes_read: int | None = None
    attention: str | None = None
    compile_events: int | None = None
    host_bytes: Mapping[str, int] = field(default_factory=dict)
    gpu_bytes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Memory:
    """What an instance holds at a moment; None: not known."""

    host_bytes: int | None = None
    gpu_bytes: int | None = None


@dataclass(frozen=True)
class Coverage:
    """Keys that ran, how many there were to run, those that did not fit, and what nothing tells."""

    ran: tuple[str, ...] = ()
    total: int = 0
    left: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


@dataclass(frozen=True)
class CanaryResult:
    """A canary's verdict, with both sides in words."""

    ok: bool
    expected: str
    got: str


@dataclass(frozen=True)
class Proof:
    """What PRIME measured.

    ``first_token_ms``: every probe in order; ``p50_ms`` and ``p99_ms``: of the steady last ones (None without
    probes). ``compile_events``: the server's own counter when the proof ended (nothing compiled during it; a later
    higher count is a late compile), None when not observable. ``keys``: compile keys that have run. ``answers``: to the
    canary set, by prompt. ``compiles``: what all channels had seen then. ``parts``: seconds of ``PRIME_PARTS``; the
    bytes are what each added.
    """

    canary: CanaryResult | None
    first_token_ms: tuple[float, ...]
    p50_ms: float | None
    p99_ms: float | None
    compile_events: int | None
    keys: tuple[str, ...]
    seconds: float
    answers: Mapping[str, Answer] = field(default_factory=dict)
    coverage: Coverage = Coverage()
    compiles: Seen = field(default_factory=Seen)
    parts: Mapping[str, float] = field(default_factory=dict)
    host_bytes: Mapping[str, int] = field(default_factory=dict)
    gpu_bytes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class FirstRequest:
    """The first ordinary request after SERVING, and steady requests of its length; None: nothing can be asked."""

    ms: float | None
    p50_ms: float | None
    p99_ms: float | None
