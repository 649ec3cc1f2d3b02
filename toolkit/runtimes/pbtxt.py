"""Protobuf's text format, as Triton's ``config.pbtxt`` is written: read without a schema, and written. Pure.

Source: protobuf.dev, "Text Format Language Specification".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Union

_TOKEN = re.compile(
    r"""(?P<space>[\s,;]+|\#[^\n]*)
      |(?P<text>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
      |(?P<number>-?(?:0[xX][0-9a-fA-F]+|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)[fF]?(?![\w.]))
      |(?P<word>-?[A-Za-z_][\w.]*)
      |(?P<mark>[:{}<>\[\]])""",
    re.VERBOSE,
)
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{1,2})|([0-7]{1,3})|(.))", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}
_WRITTEN = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"}
_ENDS = {"{": "}", "<": ">"}


class Word(str):
    """A word without quotes: the name of an enumerator, true or false."""

    __slots__ = ()


Message = Mapping[str, Sequence[Any]]
Scalar = Union[str, int, float, Word]  # noqa: UP007  (also run by Python 3.10's typing)
_Tokens = list[tuple[str, str, int]]


def read(text: str) -> Message:
    """Every field with its values in order; a value is a text, a ``Word``, a number or a message.

    Raises: ValueError that names the line.
    """
    tokens = list(_tokens(text))
    tokens.append(("end", "", text.count("\n") + 1))
    tokens.reverse()
    return _message(tokens, "")


def _tokens(text: str) -> Iterator[tuple[str, str, int]]:
    at, line = 0, 1
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise ValueError(f"line {line}: {text[at : at + 20].splitlines()[0]!r} is no text format")
        if match.lastgroup != "space":
            yield str(match.lastgroup), match[0], line
        line += match[0].count("\n")
        at = match.end()


def _message(tokens: _Tokens, end: str) -> Message:
    fields: dict[str, list[Any]] = {}
    while True:
        kind, found, line = tokens.pop()
        if found == end:
            return fields
        if kind != "word":
            raise ValueError(f"line {line}: {found or 'the end'!r} where a field's name belongs")
        fields.setdefault(found, []).extend(_values(tokens))


def _values(tokens: _Tokens) -> list[Any]:
    colon = tokens[-1][1] == ":"
    if colon:
        tokens.pop()
    _, found, line = tokens[-1]
    if found == "[":
        tokens.pop()
        return list(_list(tokens))
    if not colon and found not in _ENDS:
        raise ValueError(f"line {line}: {found or 'the end'!r} where ':' or '{{' belongs")
    return [_value(tokens)]


def _list(tokens: _Tokens) -> Iterator[Any]:
    while tokens[-1][1] != "]":
        yield _value(tokens)
    tokens.pop()


def _value(tokens: _Tokens) -> Any:
    kind, found, line = tokens.pop()
    if found in _ENDS:
        return _message(tokens, _ENDS[found])
    if kind == "text":
        parts = [found]
        while tokens[-1][0] == "text":  # texts beside each other are one
            parts.append(tokens.pop()[1])
        return "".join(_unescaped(part[1:-1]) for part in parts)
    if kind == "number":
        return _number(found)
    if kind == "word":
        return Word(found)
    raise ValueError(f"line {line}: {found or 'the end'!r} where a value belongs")


def _number(text: str) -> int | float:
    if re.fullmatch(r"-?0[0-7]+", text):
        return int(text, 8)
    try:
        return int(text, 0)
    except ValueError:
        return float(text.rstrip("fF"))


def _unescaped(text: str) -> str:
    """Numbers in it are bytes of UTF-8."""
    made, at = b"", 0
    for match in _ESCAPE.finditer(text):
        made += text[at : match.start()].encode() + _escaped(match)
        at = match.end()
    return (made + text[at:].encode()).decode("utf-8", "replace")


def _escaped(match: re.Match[str]) -> bytes:
    if match[1] or match[2]:
        return bytes([(int(match[1], 16) if match[1] else int(match[2], 8)) & 0xFF])
    return _ESCAPED.get(match[3], match[3]).encode()


def write(message: Mapping[str, Any], indent: str = "") -> str:
    """The text of a message: lists are repeated fields, mappings messages, truths and ``Word`` stand without quotes."""
    lines = []
    for name, value in message.items():
        for each in value if isinstance(value, (list, tuple)) else [value]:
            if isinstance(each, Mapping):
                lines.append(f"{indent}{name} {{\n{write(each, indent + '  ')}{indent}}}\n")
            else:
                lines.append(f"{indent}{name}: {_scalar(each)}\n")
    return "".join(lines)


def _scalar(value: Scalar | bool) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float, Word)):
        return str(value)
    return '"' + "".join(_WRITTEN.get(sign, sign if sign.isprintable() else _octal(sign)) for sign in value) + '"'


def _octal(sign: str) -> str:
    return "".join(f"\\{byte:03o}" for byte in sign.encode())
