"""Which services a deployment has: those that are wanted, and those that were removed and still end. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from toolkit.supervise import changes
from toolkit.supervise.changes import Changes
from toolkit.supervise.gates import Gate
from toolkit.supervise.service import ServiceRun


@dataclass(frozen=True)
class Roster:
    """By name. ``leaving``: removed, until nothing of them runs; ``gone``: what was removed before."""

    runs: Mapping[str, ServiceRun]
    leaving: frozenset[str] = frozenset()
    gone: frozenset[str] = frozenset()

    @classmethod
    def of(cls, services: Sequence[ServiceRun]) -> Roster:
        """All of these are wanted."""
        return cls({run.name: run for run in services})

    @cached_property
    def gates(self) -> tuple[Gate, ...]:
        """What each waits for."""
        return tuple(run.gate() for run in self.runs.values())

    def compare(self, services: Sequence[ServiceRun], resting: Collection[str]) -> Changes:
        """What would be different with these services; ``resting``: those of which nothing runs."""
        wanted = [run for name, run in self.runs.items() if name not in self.leaving]
        return changes.compare(changes.specs(wanted), changes.specs(services), resting)

    def changed(self, services: Sequence[ServiceRun], found: Changes) -> Roster:
        """These are wanted from now on; ``found`` is what is different. Nothing waits for what is leaving.

        What runs keeps its launch and its place, and takes what only its supervisor looks at.
        """
        anew = {*found.added, *found.changed, *found.started}
        runs = {run.name: run if run.name in anew else run.as_placed(self.runs[run.name]) for run in services}
        leaving = {
            name: replace(run, required=False, after=(), requires=())
            for name, run in self.runs.items()
            if name not in runs
        }
        return Roster({**runs, **leaving}, frozenset(leaving), self.gone.difference(runs))

    def without(self, ended: Collection[str]) -> Roster:
        """Nothing of these runs any more."""
        runs = {name: run for name, run in self.runs.items() if name not in ended}
        return Roster(runs, self.leaving.difference(ended), self.gone.union(ended))
