"""Values of ``options:`` as words of a command line, checked against the option that takes them. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

from toolkit.config.faults import shown
from toolkit.errors import ToolkitError
from toolkit.facts.options import Option
from toolkit.names import did_you_mean, nearest

# What some programs read as a number: 8192, 8k, 1.5Ki.
_NUMBER = re.compile(r"-?\d+(\.\d+)?([kKmMgGtT]i?)?")
_KINDS = {"int": "a whole number", "float": "a number", "flag": "true or false", "str": "a text", "json": "a mapping"}


class BadValueError(Exception):
    """What is wrong with a value, after the option's name, and what to write; never leaves the room that asks."""

    def __init__(self, what: str, hint: str | None = None) -> None:
        super().__init__(what)
        self.hint = hint


def unknown(
    key: str, where: str, *, program: str, release: str, names: Iterable[str], others: Sequence[str], code: str
) -> ToolkitError:
    """The refusal of an option that a release does not have; ``others``: releases that have it, oldest first."""
    near = None if others else nearest(key, list(names))  # what other releases have is no slip of the pen
    span = " to ".join(dict.fromkeys((others[0], others[-1]))) if others else ""
    hints = [f"Did you mean '{near}'?" if near else "", f"Other releases have it: {span}." if span else ""]
    hint = " ".join(filter(None, hints)) or f"See '{program} --help' of {release}."
    return ToolkitError(f"{program} {release} has no option '{key}'", where, hint, code=code, nearest=near)


def words_of(option: Option, value: Any, *, loose: bool = False) -> tuple[str, ...]:
    """The value as the program takes it: ``enable`` and ``disable`` for true and false; nothing for a flag.

    ``loose``: the program reads numbers below zero or such as ``8k``, and mappings where no kind is told.

    Raises: BadValueError.
    """
    if value is None:
        raise BadValueError("has no value", "Write one, or remove the key.")
    if option.kind == "flag":
        if value is not True:
            raise _no(option, value)
        return ()
    if not (option.many and isinstance(value, (list, tuple))):
        return (_one(option, value, loose),)
    if not value:
        raise BadValueError("is an empty list", "Remove it, or write a value.")
    return tuple(_one(option, each, loose) for each in value)


def _one(option: Option, value: Any, loose: bool) -> str:
    if isinstance(value, bool):
        value = "enable" if value else "disable"
        if value not in (option.choices or ()):
            raise _no(option, value == "enable")
    if not _fits(option, value, loose):
        raise _no(option, value)
    if not loose and isinstance(value, (int, float)) and str(value).startswith("-"):
        raise BadValueError(f"takes no number below zero: {value}")
    word = json.dumps(value, default=str) if isinstance(value, (dict, list, tuple)) else str(value)
    if option.choices is not None and not option.open_choices and word not in option.choices:
        raise _no(option, value)
    return word


def _no(option: Option, value: Any) -> BadValueError:
    """The refusal of a value, with what is taken instead."""
    if option.choices and not option.open_choices:
        hint = did_you_mean(value, option.choices) if isinstance(value, str) else None
        return BadValueError(f"takes one of {', '.join(option.choices)}, not {shown(value)}", hint)
    several = isinstance(value, (list, tuple, dict))
    taken = "one value" if several and option.kind != "json" else _KINDS.get(option.kind or "", "a value")
    return BadValueError(f"takes {taken}, not {shown(list(value) if isinstance(value, tuple) else value)}")


def _fits(option: Option, value: Any, loose: bool) -> bool:
    if isinstance(value, (dict, list, tuple)):
        return option.kind == "json" or (loose and option.kind is None)
    if option.kind in ("int", "float"):
        return _is_number(value, whole=option.kind == "int", loose=loose)
    text = str(value)
    if not text or text.startswith("-"):  # a parser would take it for an option
        return loose and option.kind != "json" and _NUMBER.fullmatch(text) is not None
    return option.kind is None or isinstance(value, str if option.kind == "json" else (str, int, float))


def _is_number(value: Any, *, whole: bool, loose: bool) -> bool:
    if isinstance(value, str):
        return loose and _NUMBER.fullmatch(value) is not None
    return isinstance(value, int) if whole else isinstance(value, (int, float))
