"""The known name that a mistyped one was meant to be."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from itertools import takewhile


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word most like ``word``, or None when none is like it."""
    likeness, found = max(((_likeness(word.lower(), other), other) for other in known), default=(0.0, ""))
    return found if likeness >= 0.6 else None


def _likeness(word: str, other: str) -> float:
    """From 0 to about 1; an equal beginning counts extra, so that 'envs' is nearer to 'environments' than 'engines'."""
    beginning = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(word, other.lower(), strict=False)))
    return difflib.SequenceMatcher(None, word, other.lower()).ratio() + 0.05 * beginning


def did_you_mean(word: str, known: Iterable[str]) -> str | None:
    """A hint that names the nearest known word; None when none is near."""
    near = nearest(word, known)
    return f"Did you mean '{near}'?" if near else None


def suggestion(word: str, known: Iterable[str]) -> str | None:
    """A hint that names the nearest known word, or all of them when none is near."""
    known = list(known)
    return did_you_mean(word, known) or (f"Known: {', '.join(known)}." if known else None)
