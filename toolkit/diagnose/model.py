"""The nouns of a diagnosis: what is known from outside, and what is said about a log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Verdict = Literal["stop", "retry", "retry_after_cleanup", "wait", "none"]


@dataclass(frozen=True)
class Device:
    """A GPU of the node; ``compute`` as TensorRT writes it (``9.0``)."""

    index: int
    uuid: str | None = None
    compute: str | None = None


@dataclass(frozen=True)
class Holder:
    """Who holds memory of a GPU that the service was to use; ``service`` None: nobody of the deployment.

    ``name``: how to call a holder that is no service.
    """

    service: str | None
    held_bytes: int
    name: str | None = None

    def __str__(self) -> str:
        return self.service or self.name or "processes outside the deployment"


@dataclass(frozen=True)
class Context:
    """What the plan and the host say about the service whose log it is. Every part may be unknown.

    ``budget_bytes`` is the service's share of each of its GPUs, ``total_bytes`` the size of the smallest of them.
    """

    service: str | None = None
    budget_bytes: int | None = None
    total_bytes: int | None = None
    holders: tuple[Holder, ...] = ()
    devices: tuple[Device, ...] = ()
    assigned: tuple[int, ...] = ()


@dataclass(frozen=True)
class Ending:
    """What is known of the process from outside.

    ``exit_status`` None: it still runs, or nobody knows. Negative numbers are signals, as subprocess has them.
    ``oom_killed``: the kernel's ``memory.events`` counted a kill; None: nobody looked. ``compiling``: it has a compiler
    as a child. ``quiet_s``: for how long it has written nothing.
    """

    exit_status: int | None = None
    oom_killed: bool | None = None
    compiling: bool | None = None
    quiet_s: float | None = None

    @property
    def sigkill(self) -> bool:
        return self.exit_status in (-9, 137)

    @property
    def stalled(self) -> bool:
        """The process lives and has been silent."""
        return self.exit_status is None and self.quiet_s is not None and self.quiet_s > 0


@dataclass(frozen=True)
class Diagnosis:
    """Why a start failed or stalls.

    ``root_line`` counts line feeds from 1, ``line`` is its text without prefixes. ``rule`` is the id of the check
    that finds the same before a launch, ``also`` what else the log shows. ``pattern`` is the id in patterns.yaml.
    """

    kind: str
    verdict: Verdict
    summary: str
    advice: str
    culprit: str | None = None
    root_line: int | None = None
    line: str | None = None
    also: tuple[str, ...] = ()
    rule: str | None = None
    pattern: str | None = None

    def document(self) -> dict[str, Any]:
        """The JSON of ``coexist diagnose``, without the schema number."""
        return {
            "class": self.kind, "verdict": self.verdict, "culprit": self.culprit, "root_line": self.root_line,
            "line": self.line, "summary": self.summary, "advice": self.advice, "also": list(self.also),
            "rule": self.rule,
        }  # fmt: skip


@dataclass(frozen=True)
class Finding:
    """A pattern that matched: where, what it captured, and what it means there."""

    number: int
    text: str
    pattern: str
    kind: str
    verdict: Verdict
    strength: int
    culprit: str | None
    cause: str
    fix: str
    rule: str | None = None
    rank: str | None = None
    captures: Mapping[str, str] = field(default_factory=dict)
