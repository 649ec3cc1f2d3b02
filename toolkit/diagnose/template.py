"""Sentences with holes: ``{name}`` or ``{name|what to say when nothing is known}``."""

from __future__ import annotations

import re
from collections.abc import Mapping

_HOLE = re.compile(r"\{(?P<name>\w+)(?:\|(?P<default>[^{}]*))?\}")
_SPACES = re.compile(r"\s{2,}")


def fill(template: str, values: Mapping[str, str | None]) -> str:
    """The template with its holes filled, the inner ones first; a hole without value and default says ``?``."""

    def value(hole: re.Match[str]) -> str:
        known = values.get(hole["name"])
        if known:
            return known.replace("{", "(").replace("}", ")")
        return "?" if hole["default"] is None else hole["default"]

    for _ in range(3):
        template = _HOLE.sub(value, template)
    return _SPACES.sub(" ", template).replace(" )", ")").replace(" ,", ",").strip()


def known(template: str, values: Mapping[str, str | None]) -> str | None:
    """The filled template; None where it is empty or something in it is unknown."""
    text = fill(template, values)
    return None if not text or "?" in text else text
