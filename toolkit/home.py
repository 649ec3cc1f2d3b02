"""Where coexist keeps what it makes: engines, state of deployments, caches, references."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Home:
    """``COEXIST_HOME``, or ``coexist`` in the user's XDG data folder. ``caches``: services' caches lie elsewhere."""

    root: Path
    caches: Path | None = None

    @classmethod
    def find(cls, environ: Mapping[str, str] = os.environ) -> Home:
        """The home that the environment names."""
        if chosen := environ.get("COEXIST_HOME"):
            return cls(Path(chosen).expanduser().absolute())
        data = environ.get("XDG_DATA_HOME") or "~/.local/share"
        return cls(Path(data).expanduser().absolute() / "coexist")

    @property
    def references(self) -> Path:
        return self.root / "references"

    @property
    def contexts(self) -> Path:
        """Sizes of CUDA contexts that were measured on this host."""
        return self.root / "host" / "contexts.json"

    @property
    def states(self) -> Path:
        return self.root / "state"

    def state(self, deployment: str) -> Path:
        return self.states / deployment

    def cache(self, deployment: str, service: str) -> Path:
        return (self.caches or self.root / "cache") / deployment / service

    def rank_logs(self, deployment: str, service: str) -> Path:
        """Where the ranks of a service write a log each."""
        return self.state(deployment) / "logs" / service

    def run(self, deployment: str, service: str) -> Path:
        """The files that a service is started with."""
        return self.state(deployment) / "run" / service

    def bench(self, deployment: str) -> Path:
        """What measurements of an unfinished bench are kept in."""
        return self.root / "bench" / deployment
