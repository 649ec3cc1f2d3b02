"""What a program says of its own accord: lines of its log that are new, and are not about what it was asked by us."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from toolkit.diagnose.text import body_start
from toolkit.runtimes.base import HttpProbe, Probes
from toolkit.supervise.logs import LogView, NewLines

_MANY_BYTES = 64 * 1024  # so much between two looks is no answer to us, and is not read
_REMEMBERED = 512
_METHOD = re.compile(r"\b(?:GET|POST)\b")
_CHANGING = re.compile(
    r"\b\d{1,2}:\d\d:\d\d(?:[.,]\d+)?|\b\d{4}[-/]\d\d[-/]\d\d\b|\b0x[0-9a-f]+"
    r"|\b\d+(?:[.,]\d+)? ?(?:ms|s|sec(?:ond)?s?|min(?:ute)?s?|hours?)\b",  # for how long it waits
    re.IGNORECASE,
)


@dataclass
class OwnWords:
    """One attempt's log. ``asked``: the paths that we ask, which a server that logs its requests tells for ever."""

    log: LogView
    asked: frozenset[str] = frozenset()
    _lines: NewLines = field(init=False)
    _written_bytes: int = field(init=False)
    _said_bytes: int = 0
    _known: dict[str, None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._lines = NewLines(self.log)
        self._written_bytes = self.log.start_bytes

    def count(self) -> int:
        """Bytes of what was new, so far; half a line is, since progress bars are."""
        written_bytes = self.log.written_bytes()
        grown_bytes, self._written_bytes = written_bytes - self._written_bytes, written_bytes
        if grown_bytes > _MANY_BYTES:
            self._lines.skip()
            self._said_bytes += grown_bytes
        elif grown_bytes:
            before = self._lines.unfinished_bytes
            self._said_bytes += sum(map(len, filter(self._is_new, self._lines.read())))
            self._said_bytes += max(0, self._lines.unfinished_bytes - before)
        return self._said_bytes

    def _is_new(self, line: str) -> bool:
        """Not about a request of ours, and not said before, whatever its time stamp."""
        if _METHOD.search(line) and any(path in line for path in self.asked):
            return False
        said = _CHANGING.sub("", line[body_start(line) :]).strip()
        new = said not in self._known
        self._known.pop(said, None)
        self._known[said] = None
        if len(self._known) > _REMEMBERED:
            del self._known[next(iter(self._known))]
        return new and bool(said)


def asked_paths(probes: Probes) -> frozenset[str]:
    """Every path that an instance may be asked while it starts."""
    return frozenset(_paths(probes))


def _paths(probes: Probes) -> Iterator[str]:
    fixed = (probes.loaded, probes.stage, probes.live, probes.deep, probes.register, *probes.warmup)
    yield from (probe.path for probe in fixed if isinstance(probe, HttpProbe))
    if probes.canary and probes.canary.request:
        yield probes.canary.request.path
    if probes.generation:
        yield probes.generation.path
        if probes.generation.request:
            yield probes.generation.request.path
