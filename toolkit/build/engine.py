"""A built engine, as the rest of coexist and ``build --json`` see it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toolkit.build.steps import Command


@dataclass(frozen=True)
class BuiltEngine:
    """One engine. ``info`` is the content of its ``engine.json``; ``seconds`` what this call took.

    Of a dry run: ``path`` is where it would be, ``reused`` whether it is there, ``info`` at most what tells engines of
    one checkpoint. ``warnings``: those of the notes that speak against serving it where it is to run.
    """

    name: str
    builder: str
    fingerprint: str
    path: Path
    reused: bool
    seconds: float
    commands: Sequence[Command]
    fmha: Mapping[str, Any]
    guards: Sequence[Mapping[str, str]] = ()
    notes: Sequence[str] = ()
    info: Mapping[str, Any] = field(default_factory=dict)
    warnings: Sequence[str] = ()

    def document(self) -> dict[str, Any]:
        """Its entry in ``build --json``."""
        return {
            "name": self.name,
            "builder": self.builder,
            "fingerprint": self.fingerprint,
            "path": str(self.path),
            "reused": self.reused,
            "seconds": round(self.seconds, 3),
            "commands": [{"argv": list(command.argv), "env": dict(command.env)} for command in self.commands],
            "fmha": dict(self.fmha),
            "guards": [dict(guard) for guard in self.guards],
            "notes": list(self.notes),
        }
