"""``options:`` of a service, checked against the flags its program really has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from toolkit.errors import ToolkitError
from toolkit.names import suggestion

Kind = Literal["count", "number", "text"]

_KINDS: Mapping[Kind, str] = {"count": "a whole number from 1", "number": "a number from 0", "text": "a text"}


@dataclass(frozen=True)
class Option:
    """One flag of a program and what it takes; ``choices`` empty: any value of its kind."""

    flag: str
    kind: Kind
    choices: tuple[str, ...] = ()


def argv(name: str, options: Mapping[str, Any], known: Mapping[str, Option]) -> tuple[str, ...]:
    """The flags for these options, in the order they were written.

    Raises: ToolkitError for an option the program does not have, or a value it would refuse.
    """
    flags: list[str] = []
    for key, value in options.items():
        where = f"services.{name}.options.{key}"
        option = known.get(key)
        if option is None:
            raise ToolkitError(f"unknown option '{key}'", where, suggestion(key, known), code="unknown_option")
        if not _fits(option.kind, value):
            raise ToolkitError(f"{value!r} is not {_KINDS[option.kind]}", where, code="bad_option")
        if option.choices and value not in option.choices:
            hint = suggestion(str(value), option.choices)
            raise ToolkitError(f"'{value}' is none of {', '.join(option.choices)}", where, hint, code="bad_option")
        flags += [option.flag, str(value)]
    return tuple(flags)


def _fits(kind: Kind, value: object) -> bool:
    if kind == "text":
        return isinstance(value, str) and value != ""
    if isinstance(value, bool):
        return False
    if kind == "count":
        return isinstance(value, int) and value >= 1
    return isinstance(value, (int, float)) and 0 <= value < float("inf")
