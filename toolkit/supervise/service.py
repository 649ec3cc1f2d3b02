"""What the supervisor is told of one service."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from toolkit.config.models import Restart, Warmup
from toolkit.runtimes.base import Container, Launch
from toolkit.supervise.gates import Gate
from toolkit.supervise.lifecycle import Policy
from toolkit.supervise.placement import Expected


@dataclass(frozen=True)
class MemoryDifference:
    """How free GPU memory differs from what was reserved, in words; ``blocks``: the service does not fit."""

    text: str
    blocks: bool


@dataclass(frozen=True)
class ServiceRun:
    """One service to run.

    ``launch`` makes the process of an attempt from its number. ``gpus`` are the dictionaries of the status document
    (``uuid``, ``index``, ``budget_mib``). ``memory_policy`` is what ``affinity.wrap`` takes. ``expected`` is what it is
    held against once it serves. ``launch_as``: the process of an attempt with this token, which runs already.
    ``spec``: a digest of each thing that was asked for, by key; what differs in none of them need not be restarted.
    ``placed``: what whoever planned it wants back, as JSON. ``cache_dir``: a folder that is the service's own.
    ``container``: what runs its containers, and how; None: it is a process of its own.
    ``other_ports``: by what for. ``fingerprint``: of its environment. ``history``: the file of how long its starts
    took; ``learns``: how long the next may take follows from that. ``quiet_s``: how long a start may show no progress;
    None: as long as is usual.
    """

    name: str
    runtime: str
    launch: Callable[[int], Launch]
    port: int
    cpus: tuple[int, ...] = ()
    memory_policy: Any = None
    gpus: tuple[Mapping[str, Any], ...] = ()
    after: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    wave: int = 0
    warmup: Warmup = "full"
    restart: Restart = field(default_factory=Restart)
    grace_s: float = 10.0
    late_compile: Literal["warn", "drain"] = "warn"
    required: bool = True
    backoff_first_s: float = 0.5
    expected: Expected = field(default_factory=Expected)
    launch_as: Callable[[str], Launch] | None = None
    spec: Mapping[str, str] = field(default_factory=dict)
    placed: Mapping[str, Any] = field(default_factory=dict)
    cache_dir: Path | None = None
    container: Container | None = None
    other_ports: Mapping[str, int] = field(default_factory=dict)
    fingerprint: str = ""
    history: Path | None = None
    learns: bool = True
    quiet_s: float | None = None

    @property
    def alike(self) -> str:
        """What starts have in common that tell of each other how long they take: environment and warm-up."""
        return f"{self.fingerprint} {self.warmup}"

    def ports(self) -> dict[str, int]:
        """Every port it listens on, by what it is called in messages."""
        return {self.name: self.port, **{f"{self.name} ({key})": port for key, port in self.other_ports.items()}}

    def gate(self) -> Gate:
        """What it waits for."""
        devices = frozenset(str(gpu["uuid"]) for gpu in self.gpus)
        return Gate(self.name, self.after, self.requires, devices, self.wave, self.required)

    def policy(self) -> Policy:
        """How it is restarted and stopped."""
        return Policy(
            max_restarts=self.restart.max_restarts,
            window_s=self.restart.window,
            backoff_first_s=self.backoff_first_s,
            grace_s=self.grace_s,
            late_compile=self.late_compile,
        )

    def as_placed(self, before: ServiceRun) -> ServiceRun:
        """The service that runs, with what is wanted of it now that concerns only its supervisor."""
        return replace(
            before,
            launch=lambda attempt: _as_wanted(before.launch(attempt), self.launch(attempt)),
            learns=self.learns,
            after=self.after,
            requires=self.requires,
            warmup=self.warmup,
            restart=self.restart,
            grace_s=self.grace_s,
            late_compile=self.late_compile,
            quiet_s=self.quiet_s,
            required=self.required,
            spec=self.spec,
        )


def _as_wanted(placed: Launch, wanted: Launch) -> Launch:
    """The process as it was placed, warmed as it is wanted now, and for so long.

    What built-in servers are asked is always the same, and holds the token of their attempt.
    """
    warmup = placed.probes.warmup if placed.probes.stage else wanted.probes.warmup
    probes = replace(placed.probes, warmup=warmup)
    return replace(placed, probes=probes, preload_window_s=wanted.preload_window_s)
