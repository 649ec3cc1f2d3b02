"""What pydantic finds wrong, as one clear sentence a fault."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from toolkit.config.document import Fault, KeyPath
from toolkit.names import did_you_mean, suggestion

Error = Mapping[str, Any]
Sentence = tuple[str, str | None]

NAME_RULE = "It is at most 63 lower-case letters, digits, '-', '_', '.', with a letter or digit at both ends."
_PATTERN_RULES = {
    "^/": ("path of a URL", "It starts with '/'."),
    "^[A-Za-z_][A-Za-z0-9_]*$": ("variable name", "It is letters, digits and '_', and starts with no digit."),
}


def of_model(model: type[BaseModel], content: Any) -> tuple[Fault, ...]:
    """Every fault of ``content`` as a ``model``, in pydantic's order; none when it is valid."""
    try:
        model.model_validate(content)
    except ValidationError as error:
        schema = model.model_json_schema()
        return tuple(_fault(dict(e), content, schema) for e in error.errors(include_url=False))
    return ()


def _fault(error: Error, content: Any, schema: Mapping[str, Any]) -> Fault:
    path = _in_content(error["loc"], content)
    if error["type"] == "extra_forbidden":
        hint = suggestion(str(path[-1]), _known_keys(schema, path[:-1]))
        return Fault(path, f"unknown key '{path[-1]}'", hint)
    what, hint = _sentence(error)
    if error["type"] == "missing":
        path = (*path, error["loc"][-1])
    return Fault(path, what, hint)


def _in_content(loc: KeyPath, content: Any) -> KeyPath:
    """The part of pydantic's location that is in the file: without union branches, '[key]' and defaults."""
    path: list[str | int] = []
    for part in loc:
        inside = part in content if isinstance(content, dict) else _is_index(part, content)
        if inside:
            path.append(part)
            content = content[part]
    return tuple(path)


def _is_index(part: object, content: Any) -> bool:
    return isinstance(content, list) and isinstance(part, int) and part < len(content)


def _sentence(error: Error) -> Sentence:
    kind = error["type"]
    if error["input"] is None and kind not in {"missing", "value_error"}:
        return "has no value", "Write one, or remove the key."
    sentence = _SENTENCES.get(kind)
    if sentence:
        return sentence(error)
    return f"{shown(error['input'])} is not allowed here: {error['msg']}", None


def shown(value: object) -> str:
    """A value as a short piece of a sentence."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    text = f"'{value}'" if isinstance(value, str) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}…'"


def _missing(error: Error) -> Sentence:
    name = error["loc"][-1]
    return f"'{name}' is missing", "Write 'version: 1'." if name == "version" else None


def _literal(error: Error) -> Sentence:
    value, choices = error["input"], error["ctx"]["expected"]
    if error["loc"][-1] == "version":
        return f"version {shown(value)} is not known", f"This release reads version {choices}."
    words = [word.strip("' ") for word in choices.replace(" or ", ", ").split(",")]
    return f"{shown(value)} is none of {choices}", did_you_mean(str(value), words)


def _text(error: Error) -> Sentence:
    value = error["input"]
    hint = None if isinstance(value, (dict, list)) else f'Write it in quotes: "{shown(value)}".'
    return f"{shown(value)} is not a text", hint


def _pattern(error: Error) -> Sentence:
    kind, rule = _PATTERN_RULES.get(error["ctx"]["pattern"], ("name", NAME_RULE))
    return f"{shown(error['input'])} is not a {kind}", rule


def _says(text: str, hint: str | None = None) -> Callable[[Error], Sentence]:
    return lambda error: (f"{shown(error['input'])} {text.format(**error.get('ctx', {}))}", hint)


_NOT_WHOLE = _says("is not a whole number")
_NO_TRUTH = _says("is neither true nor false")
_NO_MAPPING = _says("where a mapping belongs", "Write 'key: value' lines, indented below it.")
_NO_LIST = _says("where a list belongs", "Write it in brackets: [a, b].")
_SENTENCES: dict[str, Callable[[Error], Sentence]] = {
    "missing": _missing,
    "literal_error": _literal,
    "string_type": _text,
    "path_type": _text,
    "string_pattern_mismatch": _pattern,
    "value_error": lambda error: (str(error["ctx"]["error"]), None),
    "int_type": _NOT_WHOLE,
    "int_parsing": _NOT_WHOLE,
    "int_from_float": _NOT_WHOLE,
    "float_type": _says("is not a number"),
    "bool_type": _NO_TRUTH,
    "bool_parsing": _NO_TRUTH,
    "greater_than_equal": _says("is too small; it is at least {ge}"),
    "less_than_equal": _says("is too large; it is at most {le}"),
    "model_type": _NO_MAPPING,
    "model_attributes_type": _NO_MAPPING,
    "dict_type": _NO_MAPPING,
    "tuple_type": _NO_LIST,
    "list_type": _NO_LIST,
    "too_short": lambda error: ("is empty; it holds at least one", None),
    "string_too_short": lambda error: ("is an empty text", None),
}


def _known_keys(schema: Mapping[str, Any], path: KeyPath) -> list[str]:
    """The keys that a schema knows at a path, in its order."""
    nodes = [schema]
    for part in path:
        nodes = [child for node in nodes for branch in _branches(node, schema) for child in _children(branch, part)]
    return [key for node in nodes for branch in _branches(node, schema) for key in branch.get("properties", {})]


def _branches(node: Any, schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The node with references followed and alternatives taken apart."""
    if not isinstance(node, dict):
        return
    if "$ref" in node:
        yield from _branches(schema["$defs"][node["$ref"].rsplit("/", 1)[1]], schema)
    yield node
    for alternative in (*node.get("anyOf", ()), *node.get("oneOf", ())):
        yield from _branches(alternative, schema)


def _children(node: Mapping[str, Any], part: str | int) -> Iterator[Any]:
    if isinstance(part, int):
        yield node.get("items")
        return
    if part in node.get("properties", {}):
        yield node["properties"][part]
    yield from node.get("patternProperties", {}).values()
    yield node.get("additionalProperties")
