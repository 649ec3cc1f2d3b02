"""Whether a JSON value is what a schema says, and where it is not: the part of JSON Schema that requests need.

Keywords: type, enum, minimum, maximum, minLength, minItems, maxItems, items, properties, required, anyOf. Fields that a
schema does not name are allowed. ``title`` is what people are told that a number is; ``x-unsupported`` marks a field
that this server knows of and does not do.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

Schema: TypeAlias = "Mapping[str, Any]"
Place: TypeAlias = "tuple[str | int, ...]"

UNSUPPORTED = "x-unsupported"
_IS: Mapping[str, Callable[[object], bool]] = {
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: type(value) is int,
    "number": lambda value: type(value) is int or (isinstance(value, float) and math.isfinite(value)),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
    "null": lambda value: value is None,
}
_NAMES = {
    "string": ("a string", "strings"), "boolean": ("true or false", "true or false"),
    "integer": ("a whole number", "whole numbers"), "number": ("a number", "numbers"),
    "array": ("a list", "lists"), "object": ("an object", "objects"), "null": ("null", "null"),
}  # fmt: skip


@dataclass(frozen=True)
class Fault:
    """What is wrong at one place of a body. ``says`` completes a sentence that begins with the place.

    ``wants`` is what the schema describes there, where that is the fault; ``close``: only a bound is missed.
    """

    place: Place
    says: str
    code: str | None = None
    wants: str | None = None
    close: bool = False

    @property
    def param(self) -> str | None:
        """The place as people write it, for example ``input[3].text``; None: the body itself."""
        parts = [f"[{part}]" if isinstance(part, int) else f".{part}" for part in self.place]
        return "".join(parts).removeprefix(".") or None

    @property
    def message(self) -> str:
        """One sentence."""
        return f"{self.param or 'the body'} {self.says}"


def _wanted(place: Place, wants: str, close: bool = False) -> Fault:
    return Fault(place, f"must be {wants}", None, wants, close)


def fault(value: object, schema: Schema, place: Place = ()) -> Fault | None:
    """The first fault of a value; None when it is what the schema says."""
    if "anyOf" in schema:
        return _fault_of_any(value, schema, place)
    found = _own_fault(value, schema, place)
    if found is not None:
        return found
    if isinstance(value, dict):
        return next(_faults_of_fields(value, schema, place), None)
    if isinstance(value, list) and not _is_plain(value, schema.get("items", {})):
        return next(_faults_of_items(value, schema, place), None)
    return None


def _own_fault(value: object, schema: Schema, place: Place) -> Fault | None:
    right_type = _has_type(value, schema)
    if not (right_type and _is_listed(value, schema) and _is_within(value, schema)):
        if schema.get(UNSUPPORTED):
            return Fault(place, "is not supported by this server", "unsupported_parameter")
        return _wanted(place, describe(schema), right_type and _items_fit(value, schema))
    half = _half_pair(value) if isinstance(value, str) else None
    # JSON escapes can smuggle in what UTF-8 cannot carry.
    return None if half is None else Fault(place, f"holds half a surrogate pair at character {half}", close=True)


def _fault_of_any(value: object, schema: Schema, place: Place) -> Fault | None:
    faults = []
    for alternative in schema["anyOf"]:
        found = fault(value, alternative, place)
        if found is None:
            return None
        faults.append(found)
    return _furthest(faults)


def _furthest(faults: Sequence[Fault]) -> Fault:
    """The fault of the alternative that fits the longest; of several, what they want together."""

    def reached(found: Fault) -> tuple[bool, tuple[int, ...]]:
        return found.close, tuple(part if isinstance(part, int) else 0 for part in found.place)

    best = max(map(reached, faults))
    last = [found for found in faults if reached(found) == best]
    if len(last) == 1 or any(found.wants is None for found in last):
        return last[0]
    return _wanted(last[0].place, ", or ".join(dict.fromkeys(str(found.wants) for found in last)), last[0].close)


def _faults_of_fields(value: Mapping[str, Any], schema: Schema, place: Place) -> Iterator[Fault]:
    fields: Mapping[str, Schema] = schema.get("properties", {})
    for name in schema.get("required", ()):
        if name not in value:
            yield Fault((*place, name), f"is missing; it must be {describe(fields[name])}")
    for name, field in fields.items():
        found = fault(value[name], field, (*place, name)) if name in value else None
        if found is not None:
            yield found


def _faults_of_items(value: list[Any], schema: Schema, place: Place) -> Iterator[Fault]:
    if "items" in schema:
        for index, item in enumerate(value):
            found = fault(item, schema["items"], (*place, index))
            if found is not None:
                yield found


def _items_fit(value: object, schema: Schema) -> bool:
    return not isinstance(value, list) or next(_faults_of_items(value, schema, ()), None) is None


def _is_plain(value: list[Any], items: Schema) -> bool:
    """True for whole numbers within bounds: token ids come by the hundred thousand."""
    if items.get("type") != "integer" or set(map(type, value)) != {int}:
        return False
    return _is_within(min(value), items) and _is_within(max(value), items)


def _types(schema: Schema) -> list[str]:
    types = schema.get("type", [])
    return [types] if isinstance(types, str) else list(types)


def _has_type(value: object, schema: Schema) -> bool:
    types = _types(schema)
    return not types or any(_IS[name](value) for name in types)


def _is_listed(value: object, schema: Schema) -> bool:
    listed: Sequence[object] = schema.get("enum", [value])
    return any(type(value) is type(one) and value == one for one in listed)


def _is_within(value: object, schema: Schema) -> bool:
    if isinstance(value, bool):
        return True
    if isinstance(value, (int, float)):
        return bool(schema.get("minimum", -math.inf) <= value <= schema.get("maximum", math.inf))
    if isinstance(value, str):
        return bool(len(value) >= schema.get("minLength", 0))
    if isinstance(value, list):
        return bool(schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", math.inf))
    return True


def _half_pair(text: str) -> int | None:
    try:
        text.encode()
    except UnicodeEncodeError as e:
        return e.start
    return None


def describe(schema: Schema) -> str:
    """What a schema wants, for people; null is left out."""
    if "anyOf" in schema:
        return ", or ".join(dict.fromkeys(map(describe, schema["anyOf"])))
    if "enum" in schema:
        return " or ".join(_literal(one) for one in schema["enum"] if one is not None)
    kinds = [name for name in _types(schema) if name != "null"] or ["null"]
    return " or ".join(_described(kind, schema) for kind in kinds)


def _literal(value: object) -> str:
    return f"'{value}'" if isinstance(value, str) else json.dumps(value)


def _described(kind: str, schema: Schema) -> str:
    if kind in ("integer", "number"):
        name = f"a {schema['title']}" if "title" in schema else _NAMES[kind][0]
        return name + _range(schema.get("minimum"), schema.get("maximum"), " from {} to {}", " of at least ")
    if kind == "array":
        low, high = schema.get("minItems"), schema.get("maxItems")
        if low == high == 1:
            return f"a list of one {_plural(schema.get('items', {})).removesuffix('s')}"
        bounds = _range(low, high, " of {} to {}", " of at least ")
        return f"a list{bounds or ' of'} {_plural(schema.get('items', {}))}"
    if kind == "string" and schema.get("minLength"):
        return "a non-empty string"
    return _NAMES[kind][0]


def _range(low: object, high: object, both: str, least: str) -> str:
    if low is None:
        return ""
    return f"{least}{low}" if high is None else both.format(low, high)


def _plural(schema: Schema) -> str:
    if "title" in schema:
        return f"{schema['title']}s"
    kinds = _types(schema)
    return _NAMES[kinds[0]][1] if kinds else "entries"
