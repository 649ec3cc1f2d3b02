"""The rules as data: severity and texts by id, and how a hit becomes a finding."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from toolkit.compat.model import Effect, EnvironmentView, Finding, Hit, Severity
from toolkit.facts import Facts

RULES = Path(__file__).with_name("rules.yaml")
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True)
class Rule:
    """One entry of rules.yaml. ``by``: who sees to it, ``check`` is this room. ``versions``: which it is about."""

    id: str
    severity: Severity
    what: str
    why: str
    fix: str
    source: tuple[str, ...]
    effect: Effect | None = None
    by: str = "check"
    versions: str | None = None

    def document(self) -> dict[str, Any]:
        """Its object in ``check --explain ID --json``; texts keep their {slots}."""
        return {
            "id": self.id, "severity": self.severity, "what": self.what, "why": self.why, "fix": self.fix,
            "source": "; ".join(self.source), "by": self.by,
        }  # fmt: skip


@functools.lru_cache(maxsize=1)
def rules() -> Mapping[str, Rule]:
    """Every rule by id, in the order of the file."""
    rows = yaml.load(RULES.read_bytes(), Loader=_LOADER)  # noqa: S506  a safe loader, in C where it is there
    return {name: Rule(name, **{**row, "source": tuple(map(str, row["source"]))}) for name, row in rows.items()}


class _Slots(dict[str, object]):
    """Slots of a text; one that a rule did not fill stays visible instead of failing the whole check."""

    def __missing__(self, key: str) -> str:
        return f"({key} unknown)"


def finding(hit: Hit, facts: Facts, environment: EnvironmentView | None) -> Finding:
    """The finding of a hit: the rule's texts with the hit's values put in."""
    rule = rules()[hit.rule]
    python = environment.shown_python if environment else "python"
    slots = _Slots(subject=hit.subject, environment=hit.environment or "?", python=python, **hit.values)
    severity = hit.severity or rule.severity
    return Finding(
        id=rule.id,
        severity=severity,
        subject=hit.subject,
        environment=hit.environment,
        what=_filled(rule.what, slots),
        why=_filled(rule.why, slots),
        fix=_filled(rule.fix, slots),
        evidence=hit.evidence,
        source="; ".join((*rule.source, *(facts.sources.get(key, key) for key in hit.sources))),
        effect=hit.effect or ("blocks" if severity == "error" else rule.effect or "none"),
    )


def _filled(text: str, slots: _Slots) -> str:
    return " ".join(text.format_map(slots).split())
