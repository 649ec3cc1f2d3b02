"""patterns.yaml, read once: which rule looks at which line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import yaml

from toolkit.diagnose.model import Finding, Verdict
from toolkit.diagnose.needles import Needles
from toolkit.diagnose.text import Level, Line

STRENGTHS = {"root": 3, "soft": 2, "weak": 1}
_LEVELS = {"info": Level.INFO, "warning": Level.WARNING, "error": Level.ERROR}


@dataclass(frozen=True)
class Rule:
    """Expressions for the lines that hold one of ``needles``; ``texts`` is what they are written as."""

    order: int
    name: str
    needles: tuple[str, ...]
    texts: tuple[str, ...]

    @cached_property
    def expressions(self) -> tuple[re.Pattern[str], ...]:
        """Compiled when the first line concerns this rule: most logs concern few of some hundreds."""
        return tuple(re.compile(text, re.IGNORECASE | re.MULTILINE) for text in self.texts)

    def search(self, line: Line) -> re.Match[str] | None:
        """The first expression that matches the message."""
        return next((found for expr in self.expressions if (found := expr.search(line.message))), None)


@dataclass(frozen=True)
class Pattern(Rule):
    """A rule that names a cause. The keys are explained at the head of patterns.yaml."""

    kind: str = ""
    verdict: Verdict = "stop"
    level: Level = Level.ERROR
    strength: int = 3
    culprit: str = ""
    cause: str = ""
    fix: str = ""
    check: str | None = None
    near: Mapping[str, int] = field(default_factory=dict)
    unless: Mapping[str, int] = field(default_factory=dict)
    explains: frozenset[str] = frozenset()
    veto: bool = False
    teardown: bool = False
    phase: str | None = None
    seek: re.Pattern[str] | None = None
    refine: str | None = None
    source: str = ""
    examples: tuple[str, ...] = ()
    served: Verdict | None = None


@dataclass(frozen=True)
class Evidence(Rule):
    """A rule for lines that change what a finding means."""


@dataclass(frozen=True)
class Combination:
    """With ``evidence`` in the log, a finding of ``classes`` is really ``becomes``."""

    evidence: str
    classes: frozenset[str]
    patterns: frozenset[str]
    unless_verdict: str | None
    becomes: str
    verdict: Verdict
    at_evidence: bool
    culprit: str | None
    cause: str
    fix: str
    check: str | None
    seen: str

    def concerns(self, found: Finding, first: int, last: int) -> bool:
        """True when the evidence, seen first and last in those lines, gives this finding another meaning."""
        fits = not self.patterns or found.pattern in self.patterns
        in_time = {"before": first < found.number, "after": last > found.number}.get(self.seen, True)
        return fits and in_time and found.kind in self.classes and found.verdict != self.unless_verdict


@dataclass(frozen=True)
class Landmark(Rule):
    """A rule for names that a later finding may need; with ``below`` the name stands in one of the next lines."""

    below: re.Pattern[str] | None = None


@dataclass(frozen=True)
class Mark(Rule):
    """A rule for lines that tell how far the program came; its name is that of the group in ``marks``."""


@dataclass(frozen=True)
class Jit(Rule):
    """A rule about compiling: ``begun``, ``ended`` or ``stalled``; ``lock``: silence after it means a lock."""

    lock: bool = False


@dataclass(frozen=True)
class Catalogue:
    """All rules, and the strings by which a line finds those that concern it."""

    rules: tuple[Rule, ...]
    combinations: tuple[Combination, ...]
    progress: tuple[re.Pattern[str], ...]
    gone: re.Pattern[str]
    suspicious: re.Pattern[str]
    needles: Needles

    @property
    def patterns(self) -> tuple[Pattern, ...]:
        return tuple(rule for rule in self.rules if isinstance(rule, Pattern))

    def concerned(self, low: bytes) -> Iterator[Rule]:
        """The rules that a line (lower case) may match, in the order of the file."""
        return (self.rules[order] for order in self.needles.concerned(low))

    def is_progress(self, text: str) -> bool:
        return any(expression.search(text) for expression in self.progress)


@lru_cache(maxsize=1)
def load() -> Catalogue:
    """The catalogue of this package; a fault in the file is a fault of coexist."""
    text = Path(__file__).with_name("patterns.yaml").read_bytes()
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # both are safe; the one in C is ten times faster
    return parse(yaml.load(text, Loader=loader))  # noqa: S506


def parse(data: Mapping[str, Any]) -> Catalogue:
    """The catalogue of the parsed file; its rules compile when they are met. Raises KeyError for a faulty one."""
    rules: list[Rule] = []
    for group in ("benign", "echo", "unavailable", "ready", "shutdown", "start", "quoting"):
        rules += [Mark(len(rules) + i, group, *_search(entry)) for i, entry in enumerate(data["marks"][group])]
    rules += [
        Landmark(len(rules) + i, e["name"], *_search(e), _optional(e, "below")) for i, e in enumerate(data["landmarks"])
    ]
    for group in ("begun", "ended", "stalled"):
        entries = enumerate(data["jit"][group], len(rules))
        rules += [Jit(order, group, *_search(entry), entry.get("wait") == "lock") for order, entry in entries]
    rules += [Evidence(len(rules) + i, e["id"], *_search(e)) for i, e in enumerate(data["evidence"])]
    classes = data["classes"]
    rules += [_pattern(len(rules) + i, e, classes[e["class"]]) for i, e in enumerate(data["patterns"])]
    rules += [Mark(len(rules) + i, "exception", *_search(e)) for i, e in enumerate(data["marks"]["exception"])]
    combinations = tuple(_combination(entry, classes[entry["becomes"]]) for entry in data["combine"])
    progress = tuple(re.compile(expression) for expression in data["progress"])
    needles = Needles({rule.order: rule.needles for rule in rules})
    gone, suspicious = (re.compile(data[name], re.IGNORECASE) for name in ("gone", "suspicious"))
    return Catalogue(tuple(rules), combinations, progress, gone, suspicious, needles)


def _search(entry: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return tuple(entry["needles"]), tuple(entry["expr"] if isinstance(entry["expr"], list) else [entry["expr"]])


def _optional(entry: Mapping[str, Any], key: str) -> re.Pattern[str] | None:
    return re.compile(entry[key], re.IGNORECASE) if key in entry else None


def _pattern(order: int, entry: Mapping[str, Any], defaults: Mapping[str, Any]) -> Pattern:
    return Pattern(
        order, entry["id"], *_search(entry), entry["class"], entry.get("verdict", defaults["verdict"]),
        _LEVELS[entry.get("level", "error")], STRENGTHS[entry.get("strength", "root")], entry.get("culprit", ""),
        entry["cause"], entry["fix"], entry.get("rule", defaults.get("rule")), entry.get("near", {}),
        entry.get("unless", {}), frozenset(entry.get("explains", ())), entry.get("veto", False),
        entry.get("teardown", False), entry.get("phase"), _optional(entry, "seek"), entry.get("refine"),
        entry["source"], tuple(entry["examples"]), entry.get("served"),
    )  # fmt: skip


def _combination(entry: Mapping[str, Any], defaults: Mapping[str, Any]) -> Combination:
    culprit = "" if entry.get("drop_culprit") else entry.get("culprit")
    return Combination(
        entry["evidence"], frozenset(entry["classes"]), frozenset(entry.get("patterns", ())),
        entry.get("unless", {}).get("verdict"), entry["becomes"], defaults["verdict"], entry["root"] == "evidence",
        culprit, entry["cause"], entry["fix"], defaults.get("rule"), entry["seen"],
    )  # fmt: skip
