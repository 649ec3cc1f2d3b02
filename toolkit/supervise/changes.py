"""What is different between the services that run and those that are wanted. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from toolkit.supervise.service import ServiceRun

# Keys that only coexist itself looks at: they hold without a new process.
_AT_ONCE = {"after", "requires", "restart", "grace", "late_compile"}
_AT_THE_NEXT_START = {"preload_window", "quiet_window", "warmup", "warmup_requests"}
OF_THE_SUPERVISOR = frozenset(_AT_ONCE | _AT_THE_NEXT_START)


@dataclass(frozen=True)
class Changes:
    """By service. ``changed``: keys for which it starts anew; ``applied``: keys that hold without that.

    ``started``: unchanged, but at rest until now.
    """

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    applied: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    started: tuple[str, ...] = ()
    unchanged: tuple[str, ...] = ()

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "added": list(self.added),
            "removed": list(self.removed),
            "changed": {name: list(keys) for name, keys in self.changed.items()},
            "applied": {name: list(keys) for name, keys in self.applied.items()},
            "started": list(self.started),
            "unchanged": list(self.unchanged),
        }


Specs = Mapping[str, Mapping[str, str]]


def compare(running: Specs, wanted: Specs, resting: Collection[str] = ()) -> Changes:
    """The difference; ``resting``: services of which nothing runs."""
    both = {name: tuple(_keys(running[name], wanted[name])) for name in wanted if name in running}
    changed = {name: keys for name, keys in both.items() if needs_restart(keys)}
    same = {name: keys for name, keys in both.items() if name not in changed}
    return Changes(
        added=tuple(name for name in wanted if name not in running),
        removed=tuple(name for name in running if name not in wanted),
        changed=changed,
        applied={name: keys for name, keys in same.items() if keys},
        started=tuple(name for name in same if name in resting),
        unchanged=tuple(name for name, keys in same.items() if not keys and name not in resting),
    )


def needs_restart(keys: Collection[str]) -> bool:
    """Whether one of these keys is more than the supervisor's own."""
    return not OF_THE_SUPERVISOR.issuperset(keys)


def same_process(running: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    """Whether the process that runs is the one that is wanted."""
    return not needs_restart(tuple(_keys(running, wanted)))


def specs(runs: Collection[ServiceRun]) -> Specs:
    """By service, what it is compared by."""
    return {run.name: run.spec for run in runs}


def _keys(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[str]:
    for key in dict.fromkeys((*before, *after)):
        if before.get(key) != after.get(key):
            yield key
