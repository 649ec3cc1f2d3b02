"""Where coexist keeps what it makes: engines, state of deployments, caches, references."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Home:
    """``COEXIST_HOME``, or ``coexist`` in the user's XDG data folder.

    ``caches``: services' caches lie elsewhere (``COEXIST_CACHE``): they want a local disk.
    """

    root: Path
    caches: Path | None = None

    @classmethod
    def find(cls, environ: Mapping[str, str] = os.environ) -> Home:
        """The home that the environment names."""
        caches = environ.get("COEXIST_CACHE")
        local = Path(caches).expanduser().absolute() if caches else None
        if chosen := environ.get("COEXIST_HOME"):
            return cls(Path(chosen).expanduser().absolute(), local)
        data = environ.get("XDG_DATA_HOME") or "~/.local/share"
        return cls(Path(data).expanduser().absolute() / "coexist", local)

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
        """Caches of a service, a folder for each environment it ran in."""
        return (self.caches or self.root / "cache") / deployment / service

    def history(self, deployment: str, service: str) -> Path:
        """How long its starts took."""
        return self.root / "history" / deployment / f"{service}.json"

    def rank_logs(self, deployment: str, service: str) -> Path:
        """Where the ranks of a service write a log each."""
        return self.state(deployment) / "logs" / service

    def run(self, deployment: str, service: str) -> Path:
        """The files that a service is started with."""
        return self.state(deployment) / "run" / service

    def bench(self, deployment: str) -> Path:
        """What measurements of an unfinished bench are kept in."""
        return self.root / "bench" / deployment
