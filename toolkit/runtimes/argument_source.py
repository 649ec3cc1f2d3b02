"""Options of a server program, read from the source files that define them; nothing is imported or run.

Four ways of defining are read: ``add_argument("--x", type=…)``; ``add_argument("--x", **of_class["x"])``, whose form
comes from a class's annotations; classes whose every field is an option; parameters or fields with ``Annotated``.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from toolkit.facts.options import Option
from toolkit.runtimes.annotation import Shape, literal, shape_of

# Above the largest of today (SGLang's, half a megabyte); an odd file is not read without end.
MAX_SOURCE_BYTES = 4 << 20
Switch = Literal["flag", "pair"]


@dataclass(frozen=True)
class Source:
    """What the files say: classes and literal constants by name, and the syntax trees themselves."""

    trees: tuple[ast.Module, ...] = ()
    classes: Mapping[str, ast.ClassDef] = field(default_factory=dict)
    constants: Mapping[str, ast.expr] = field(default_factory=dict)


def source(folder: Path, patterns: Iterable[str]) -> Source:
    """The files of a package that match; one that is not there, or is no Python, is left out."""
    files = sorted({file for pattern in patterns for file in folder.glob(pattern)})
    trees = tuple(tree for file in files if (tree := _tree(file)) is not None)
    return Source(trees, dict(_classes(trees)), dict(_constants(trees)))


def _tree(file: Path) -> ast.Module | None:
    try:
        known = file.stat()
        return _parsed(file, known.st_mtime_ns) if known.st_size <= MAX_SOURCE_BYTES else None
    except (OSError, SyntaxError, ValueError, RecursionError):
        return None


@functools.lru_cache(maxsize=64)
def _parsed(file: Path, mtime_ns: int) -> ast.Module:
    return ast.parse(file.read_bytes())


def _classes(trees: Iterable[ast.Module]) -> Iterator[tuple[str, ast.ClassDef]]:
    for tree in trees:
        yield from ((node.name, node) for node in tree.body if isinstance(node, ast.ClassDef))


def _constants(trees: Iterable[ast.Module]) -> Iterator[tuple[str, ast.expr]]:
    """Names that a module gives a value once, at its top."""
    for tree in trees:
        for node in tree.body:
            if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
                yield node.targets[0].id, node.value
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
                yield node.target.id, node.value


def of_calls(found: Source) -> Iterator[Option]:
    """The options of every ``add_argument`` call."""
    for tree in found.trees:
        origins = _class_of_kwargs(tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and _called(node.func) == "add_argument" and (names := _flags(node)):
                yield _of_call(names, node, origins, found)


def _class_of_kwargs(tree: ast.Module) -> dict[str, str]:
    """``kwargs = get_kwargs(CacheConfig)``: variable to class."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and node.value.args:
            target, argument = node.targets[0], node.value.args[0]
            if isinstance(target, ast.Name) and isinstance(argument, ast.Name):
                found[target.id] = argument.id
    return found


def _flags(node: ast.Call) -> tuple[str, ...]:
    words = (argument.value for argument in node.args if isinstance(argument, ast.Constant))
    return tuple(word for word in words if isinstance(word, str) and word.startswith("-"))


def _called(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _of_call(names: tuple[str, ...], node: ast.Call, origins: Mapping[str, str], found: Source) -> Option:
    keywords = {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg is not None}
    option = _named(names, _shape_of_kwargs(node, origins, found), "pair")
    action = keywords.get("action")
    if action is not None:
        option = _with_action(option, action)
    if "type" in keywords and option.kind is None:
        option = replace(option, kind=_called(keywords["type"]) if _is_plain(keywords["type"]) else None)
    if "choices" in keywords:
        option = _with_choices(option, literal(keywords["choices"], found.constants))
    if "nargs" in keywords:
        option = replace(option, many=_takes_many(keywords["nargs"]))
    return replace(option, default=_plain(keywords.get("default")))


def _shape_of_kwargs(node: ast.Call, origins: Mapping[str, str], found: Source) -> Shape:
    """Of ``**kwargs["field"]``, also inside ``**{**kwargs["field"], "default": None}``."""
    for spread in (keyword.value for keyword in node.keywords if keyword.arg is None):
        inner = (
            next((v for k, v in zip(spread.keys, spread.values, strict=True) if k is None), spread)
            if isinstance(spread, ast.Dict)
            else spread
        )
        if isinstance(inner, ast.Subscript) and isinstance(inner.value, ast.Name):
            owner, name = origins.get(inner.value.id), _plain(inner.slice)
            annotation = dict(_fields(owner, found)).get(str(name)) if owner else None
            if annotation is not None:
                return shape_of(annotation[0], found.constants)
    return Shape()


def _with_action(option: Option, action: ast.expr) -> Option:
    name = _plain(action) if isinstance(action, ast.Constant) else _called(action)
    if name in ("store_true", "store_false", "store_const", "count"):
        return replace(option, kind="flag", negation=None)
    if name == "BooleanOptionalAction":
        return replace(option, kind="flag", negation=_no(option.name))
    return replace(option, many=True) if name in ("append", "extend") else replace(option, kind=None)


def _is_plain(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("str", "int", "float")


def _takes_many(nargs: ast.expr) -> bool:
    value = _plain(nargs)
    return value in ("+", "*") or (isinstance(value, int) and value > 1)


def _with_choices(option: Option, choices: tuple[str, ...] | None) -> Option:
    return replace(option, choices=choices, open_choices=choices is None)


def of_fields(found: Source, names: Iterable[str], switch: Switch = "pair") -> Iterator[Option]:
    """One option for each field of these classes and of what they inherit; ``switch``: how a bool field is switched."""
    for name in names:
        for each, (annotation, default) in _fields(name, found):
            if not each.startswith("_"):
                option = _named((_flag(each),), shape_of(annotation, found.constants), switch)
                yield replace(option, default=_plain(default))


def _fields(name: str, found: Source) -> Iterator[tuple[str, tuple[ast.expr, ast.expr | None]]]:
    """Annotated fields of a class, what it inherits first."""
    owner = found.classes.get(name)
    if owner is None:
        return
    for base in owner.bases:
        yield from _fields(_called(base), found)
    for node in owner.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id, (node.annotation, node.value)


def of_annotated(found: Source) -> Iterator[Option]:
    """One option for each class field ``x: Annotated[T, "help"]`` or ``Annotated[T, Arg(…)]`` (also ``A[…]``)."""
    for owner in found.classes.values():
        for node in owner.body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                made = _of_annotated(node.target.id, node.annotation, node.value, "flag", found)
                if made is not None:
                    yield made


def of_parameters(found: Source, owner: str) -> Iterator[Option]:
    """One option for each ``Annotated`` parameter of the class's ``__init__``, or of the function of that name."""
    for function in _functions(found, owner):
        spec = function.args
        padded: list[ast.expr | None] = [None] * (len(spec.args) - len(spec.defaults))
        pairs = [*zip(spec.args, [*padded, *spec.defaults], strict=True)]
        for argument, default in (*pairs, *zip(spec.kwonlyargs, spec.kw_defaults, strict=True)):
            if argument.annotation is not None:
                made = _of_annotated(argument.arg, argument.annotation, default, "pair", found)
                if made is not None:
                    yield made


def _functions(found: Source, name: str) -> Iterator[ast.FunctionDef]:
    if name in found.classes:
        body = found.classes[name].body
        yield from (n for n in body if isinstance(n, ast.FunctionDef) and n.name == "__init__")
    for tree in found.trees:
        yield from (n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == name)


def _of_annotated(
    name: str, annotation: ast.expr, default: ast.expr | None, switch: Switch, found: Source
) -> Option | None:
    """None: no ``Annotated``, no option, or a positional argument."""
    parts = _annotated(annotation)
    if parts is None:
        return None
    inner, notes = parts
    calls = {_called(note.func): note for note in notes if isinstance(note, ast.Call)}
    about = calls.get("Arg") or calls.get("Option")
    told = any(isinstance(note, (ast.Constant, ast.JoinedStr, ast.BinOp)) for note in notes)
    keywords = {k.arg: k.value for k in about.keywords if k.arg} if about else {}
    if not (about or told) or "Argument" in calls or _plain(keywords.get("no_cli")) is True:
        return None
    own = tuple(word for word in _flags(about) if "/" not in word) if about else ()
    first = str(_plain(keywords.get("cli_name")) or (own[0] if own else _flag(name)))
    aliases = literal(keywords.get("aliases"), found.constants) or own[1:]
    option = _named((first, *aliases), shape_of(inner, found.constants), switch)
    return _from_metadata(replace(option, default=_plain(default)), keywords, found)


def _from_metadata(option: Option, keywords: Mapping[str, ast.expr], found: Source) -> Option:
    if "choices" in keywords:
        option = _with_choices(option, literal(keywords["choices"], found.constants))
    if "type_parser" in keywords:
        option = replace(option, kind=None, many=False)
    if "nargs" in keywords:
        option = replace(option, many=_takes_many(keywords["nargs"]))
    return _with_action(option, keywords["action"]) if "action" in keywords else option


def _annotated(annotation: ast.expr) -> tuple[ast.expr, list[ast.expr]] | None:
    if not isinstance(annotation, ast.Subscript) or _called(annotation.value) not in ("Annotated", "A"):
        return None
    parts = annotation.slice.elts if isinstance(annotation.slice, ast.Tuple) else [annotation.slice]
    return (parts[0], list(parts[1:])) if parts else None


def _named(names: tuple[str, ...], shape: Shape, switch: Switch) -> Option:
    """The option of a shape; its name is the first long one."""
    name = next((each for each in names if each.startswith("--")), names[0])
    aliases = tuple(each for each in names if each != name)
    if shape.kind == "flag":
        return Option(name, "flag", aliases=aliases, negation=_no(name) if switch == "pair" else None)
    return Option(name, shape.kind, shape.choices, aliases=aliases, many=shape.many, open_choices=shape.open_choices)


def _flag(field_name: str) -> str:
    return "--" + field_name.replace("_", "-")


def _no(name: str) -> str:
    return "--no-" + name.removeprefix("--")


def _plain(node: ast.expr | None) -> Any:
    """The value of a constant; None for all else."""
    return node.value if isinstance(node, ast.Constant) else None
