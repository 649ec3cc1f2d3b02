"""What is seen of compiles, channel by channel, and what is new between two looks. Pure."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

COUNTER = "counter"
UNOBSERVABLE = "unobservable"


@dataclass(frozen=True)
class Seen:
    """Compiles so far by channel; None: nothing of it can be seen from outside. ``newest``: its last key, in words.

    ``running``: a compiler that is at work right now.
    """

    counts: Mapping[str, int | None] = field(default_factory=dict)
    newest: Mapping[str, str] = field(default_factory=dict)
    running: str | None = None

    def document(self) -> dict[str, int | str]:
        """The counts as JSON; what cannot be seen is said to be so, never 0."""
        return {name: UNOBSERVABLE if count is None else count for name, count in self.counts.items()}

    @property
    def observed(self) -> bool:
        """Whether any channel can be seen."""
        return any(count is not None for count in self.counts.values())


Watch = Callable[[], Awaitable[Seen]]


@dataclass(frozen=True)
class Compile:
    """``count`` compiles were seen in one channel; ``key``: the last of them, where it has a name."""

    channel: str
    count: int
    key: str | None = None

    def __str__(self) -> str:
        return f"{self.channel}: {self.count}" + (f" ({self.key})" if self.key else "")


def since(before: Seen, after: Seen) -> tuple[Compile, ...]:
    """What was compiled between two looks; a channel that can't be seen in both tells nothing."""
    grown = {name: _growth(before.counts.get(name), count) for name, count in after.counts.items()}
    return tuple(Compile(name, count, after.newest.get(name)) for name, count in grown.items() if count > 0)


def _growth(before: int | None, after: int | None) -> int:
    return 0 if before is None or after is None else after - before


def in_words(found: tuple[Compile, ...]) -> str:
    """One line."""
    return "; ".join(map(str, found))
