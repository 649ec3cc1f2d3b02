"""What an argument parser makes of a type annotation, from its syntax alone. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_MAPPINGS = ("dict", "Dict", "Mapping")
_SEQUENCES = ("list", "List", "tuple", "Tuple", "set", "Set", "Sequence")
_KINDS = {"bool": "flag", "int": "int", "float": "float", "str": "str"}
# An alias of an alias of an alias is followed no further.
_DEPTH = 8


@dataclass(frozen=True)
class Shape:
    """The form of one option; ``kind`` and ``choices`` as in ``facts.options.Option``."""

    kind: str | None = None
    choices: tuple[str, ...] | None = None
    many: bool = False
    open_choices: bool = False


def shape_of(annotation: ast.expr, constants: Mapping[str, ast.expr]) -> Shape:
    """The form of an option with this type; what cannot be told stays None."""
    members = list(_members(annotation, constants, _DEPTH))
    names = {name for name, _ in members}
    if "bool" in names:
        return Shape("flag")
    choices = tuple(word for name, node in members if name == "Literal" for word in _words(node))
    if choices:
        return Shape(None if "str" in names else "str", choices, open_choices="str" in names)
    inner = next((node for name, node in members if name in _SEQUENCES), None)
    if inner is not None:
        of = shape_of(inner, constants) if isinstance(inner, ast.expr) else Shape()
        return Shape(of.kind, of.choices, True, of.open_choices)
    if names & set(_MAPPINGS):
        return Shape("json")
    plain = [_KINDS[name] for name in ("int", "float", "str") if name in names]
    return Shape(plain[0] if len(plain) == 1 and len(names) == 1 else None)


def literal(node: ast.expr | None, constants: Mapping[str, ast.expr], depth: int = _DEPTH) -> tuple[str, ...] | None:
    """The words of a list, tuple or set of constants, or of the name of one; None when it cannot be told."""
    if isinstance(node, ast.Name) and node.id in constants and depth:
        return literal(constants[node.id], constants, depth - 1)
    if isinstance(node, ast.Call) and len(node.args) == 1 and depth:  # list(NAMES), get_args(Choices), sorted(…)
        return literal(node.args[0], constants, depth - 1)
    if isinstance(node, ast.Subscript) and _name(node.value) == "Literal":
        return _words(node.slice)
    if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
        words = [each.value for each in node.elts if isinstance(each, ast.Constant)]
        return tuple(str(word) for word in words) if len(words) == len(node.elts) else None
    return None


def _members(node: ast.expr, constants: Mapping[str, ast.expr], depth: int) -> Iterator[tuple[str, ast.expr | None]]:
    """The members of a union by the name of their type, with what stands in their brackets; None is left out."""
    if isinstance(node, ast.Constant):
        if isinstance(node.value, str) and depth:
            yield from _members(_parsed(node.value), constants, depth - 1)
    elif isinstance(node, ast.BinOp):
        yield from _members(node.left, constants, depth)
        yield from _members(node.right, constants, depth)
    elif isinstance(node, ast.Subscript):
        yield from _subscript(node, constants, depth)
    elif isinstance(node, ast.Name) and node.id in constants and depth:
        yield from _members(constants[node.id], constants, depth - 1)
    else:
        yield _name(node), None


def _subscript(
    node: ast.Subscript, constants: Mapping[str, ast.expr], depth: int
) -> Iterator[tuple[str, ast.expr | None]]:
    name, parts = _name(node.value), node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    if name in ("Optional", "Union"):
        for part in parts:
            yield from _members(part, constants, depth)
    elif name in ("Annotated", "A", "ClassVar", "Final", "SkipValidation"):
        yield from _members(parts[0], constants, depth)
    elif name == "Literal":
        yield name, node.slice
    else:
        yield name, parts[0] if parts else None


def _words(node: ast.expr | None) -> tuple[str, ...]:
    parts = node.elts if isinstance(node, ast.Tuple) else [node]
    return tuple(str(part.value) for part in parts if isinstance(part, ast.Constant))


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _parsed(text: str) -> ast.expr:
    try:
        return ast.parse(text, mode="eval").body
    except SyntaxError:
        return ast.Constant(None)
