"""Values of ``options:`` as words of a command line, checked against the option that takes them. Pure."""

from __future__ import annotations

from typing import Any

from toolkit.config.faults import shown
from toolkit.facts.options import Option
from toolkit.names import nearest


class BadValueError(Exception):
    """What is wrong with a value, and what to write; never leaves the room that asks."""

    def __init__(self, what: str, hint: str | None = None) -> None:
        super().__init__(what)
        self.hint = hint


def words_of(option: Option, value: Any) -> tuple[str, ...]:
    """The value as the program takes it: ``enable`` and ``disable`` for true and false; nothing for a flag."""
    if value is None:
        raise BadValueError("has no value", "Write one, or remove the key.")
    if option.kind == "flag":
        if value is not True:
            raise BadValueError(f"{shown(value)} is no value for a flag", "Write true or false.")
        return ()
    items = value if option.many and isinstance(value, list) else [value]
    return tuple(_one(option, item) for item in items)


def _one(option: Option, value: Any) -> str:
    if isinstance(value, bool):
        return _truth(option, value)
    if isinstance(value, (list, dict)):
        raise BadValueError(f"{shown(value)} where one value belongs")
    text = str(value)
    if option.kind in ("int", "float"):
        return _number(option, value)
    if not text or text.startswith("-"):
        raise BadValueError(f"{shown(text)} is no value for an option")
    if option.choices is not None and not option.open_choices and text not in option.choices:
        near = nearest(text, option.choices)
        hint = f"Known: {', '.join(option.choices)}." + (f" Did you mean '{near}'?" if near else "")
        raise BadValueError(f"{shown(value)} is none of its values", hint)
    return text


def _truth(option: Option, value: bool) -> str:
    text = "enable" if value else "disable"
    if text in (option.choices or ()):
        return text
    hint = f"Known: {', '.join(option.choices)}." if option.choices else None
    raise BadValueError(f"{shown(value)} is none of its values", hint)


def _number(option: Option, value: Any) -> str:
    right = type(value) is int if option.kind == "int" else isinstance(value, (int, float))
    if not right:
        raise BadValueError(f"{shown(value)} is no {'whole ' if option.kind == 'int' else ''}number")
    if value < 0:
        raise BadValueError(f"{value} is below zero")
    return str(value)
