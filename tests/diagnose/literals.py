"""Whether every text that an expression can match holds one of some literals: a walk over the parsed expression."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any

_parser: Any = importlib.import_module("re._parser" if sys.version_info >= (3, 11) else "sre_parse")
_FEW = 8
_REPEATS = 3

# What was read so far and holds no literal yet: its end, which may become the beginning of one, and the whole of it.
_Texts = dict[str, str]


def without_literal(expression: str, literals: Sequence[str]) -> str | None:
    """A text, in lower case, that the expression matches though it holds none of the literals; None: there is none."""
    left = _sequence(_parser.parse(expression, re.IGNORECASE | re.MULTILINE), {"": ""}, literals)
    return min(left.values(), key=len, default=None)


def _sequence(items: Iterable[Any], texts: _Texts, literals: Sequence[str]) -> _Texts:
    for name, value in items:
        texts = _item(str(name), value, texts, literals)
    return texts


def _item(name: str, value: Any, texts: _Texts, literals: Sequence[str]) -> _Texts:
    if name == "LITERAL":
        return _added(chr(value).lower(), texts, literals)
    if name == "IN":
        return _one_of(value, texts, literals)
    if name == "BRANCH":
        return _either([_sequence(branch, texts, literals) for branch in value[1]])
    if name == "SUBPATTERN":
        return _sequence(value[3], texts, literals)
    if name in ("MAX_REPEAT", "MIN_REPEAT"):
        return _repeated(value, texts, literals)
    if name == "ASSERT" and value[0] > 0:
        return texts if _sequence(value[1], texts, literals) else {}
    if name in ("AT", "ASSERT", "ASSERT_NOT"):
        return texts
    return _anything(texts)


def _added(letter: str, texts: _Texts, literals: Sequence[str]) -> _Texts:
    longer = {end + letter: text + letter for end, text in texts.items()}
    return {end: text for end, text in longer.items() if not any(literal in end for literal in literals)}


def _one_of(choices: Sequence[Any], texts: _Texts, literals: Sequence[str]) -> _Texts:
    letters = {chr(value).lower() for name, value in choices if str(name) == "LITERAL"}
    if len(letters) > _FEW or any(str(name) != "LITERAL" for name, _ in choices):
        return _anything(texts)
    return _either([_added(letter, texts, literals) for letter in sorted(letters)])


def _repeated(value: Sequence[Any], texts: _Texts, literals: Sequence[str]) -> _Texts:
    least, most, items = int(value[0]), int(value[1]), value[2]
    ends = [texts] if least == 0 else []
    for times in range(1, min(most, least + _REPEATS) + 1):
        texts = _sequence(items, texts, literals)
        ends += [texts] if times >= least else []
    return _either(ends + ([_anything(texts)] if most > least + _REPEATS else []))


def _anything(texts: _Texts) -> _Texts:
    return {"": min(texts.values(), key=len) + "…"} if texts else {}


def _either(all_texts: Sequence[_Texts]) -> _Texts:
    found: _Texts = {}
    for texts in all_texts:
        for end, text in texts.items():
            found[end] = min(found.get(end, text), text, key=len)
    return found
