"""A YAML file as plain data that remembers the line of every key."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from toolkit.errors import ToolkitError
from toolkit.names import nearest

KeyPath = tuple[str | int, ...]

MAX_FILE_BYTES = 256 * 1024
MAX_VALUES = 20_000  # after aliases are expanded: a few lines of them can mean billions
MAX_DEPTH = 32


@dataclass(frozen=True)
class Fault:
    """One thing wrong at a key path; ``line`` only where the path does not tell it. ``details`` go into the error."""

    path: KeyPath
    what: str
    hint: str | None = None
    line: int | None = None
    details: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True)
class Document:
    """``lines`` maps written-out key paths (``services.llm.after[0]``) to lines, counted from 1."""

    file: Path
    content: Any
    lines: Mapping[str, int]
    faults: tuple[Fault, ...] = ()

    def line(self, key_path: str) -> int:
        """The line of a key path, or of the nearest one above it that is in the file."""
        while key_path and key_path not in self.lines:
            key_path = key_path[: max(key_path.rfind("."), key_path.rfind("["), 0)]
        return self.lines.get(key_path, 1)

    def where(self, key_path: str) -> str:
        """``file:line key.path``, the ``where`` of an error."""
        return f"{self.file}:{self.line(key_path)} {key_path}".rstrip()


def dotted(path: KeyPath) -> str:
    """A key path as people write it: ``services.llm.after[0]``."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".")


def read(file: Path) -> Document:
    """The document in a file; what can be told of it without a schema is in ``faults``.

    Raises: ToolkitError when the file cannot be read or is no YAML at all.
    """
    text = _read_text(file)
    walk = _Walk(str(file))
    node = _compose(text, str(file))
    content = walk.value(node, ()) if node else None
    return Document(file, content, {dotted(path): line for path, line in walk.lines.items()}, tuple(walk.faults))


def _read_text(file: Path) -> str:
    try:
        _refuse_what_is_no_file(file)
        raw = file.read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a NUL character in the name
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ToolkitError(f"cannot be read: {reason}", str(file)) from error
    if len(raw) > MAX_FILE_BYTES:
        raise ToolkitError(f"is over {MAX_FILE_BYTES // 1024} KiB, too large to be written by a person", str(file))
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise ToolkitError("is not UTF-8 text", f"{file}:{line}", "Save it as UTF-8.") from error


def _refuse_what_is_no_file(file: Path) -> None:
    if file.is_dir():
        raise ToolkitError("is a folder, not a file", str(file), _listed(_yaml_files_in(file)))
    if not file.exists():
        raise ToolkitError("no such file", str(file), _meant_instead_of(file))
    if not file.is_file():
        raise ToolkitError("is not a regular file", str(file))


def _yaml_files_in(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.y*ml")) if folder.is_dir() else []


def _meant_instead_of(file: Path) -> str:
    neighbours = _yaml_files_in(file.parent)
    near = nearest(file.stem, (path.stem for path in neighbours))
    return _listed(neighbours) if near is None else f"Did you mean '{next(p for p in neighbours if p.stem == near)}'?"


def _listed(files: list[Path]) -> str:
    if not files:
        return "'coexist init FILE' writes a first deployment."
    more = f" and {len(files) - 5} more" if len(files) > 5 else ""
    return f"There is {', '.join(map(str, files[:5]))}{more}."


class _Loader(yaml.SafeLoader):
    """YAML 1.2's plain scalars: no 'yes' that is a truth value, no 10:30 that is a number, no dates."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012  PyYAML's own way


_TAG = "tag:yaml.org,2002:"
_PLAIN_SCALARS = (
    ("null", r"(?:~|null|Null|NULL|)$", ["~", "n", "N", ""]),
    ("bool", r"(?:true|True|TRUE|false|False|FALSE)$", ["t", "T", "f", "F"]),
    ("int", r"[-+]?[0-9]{1,18}$", list("-+0123456789")),
    ("float", r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]{1,3})?$", list("-+.0123456789")),
    ("merge", r"<<$", ["<"]),
)
for _name, _pattern, _first in _PLAIN_SCALARS:
    _Loader.add_implicit_resolver(_TAG + _name, re.compile(_pattern), _first)


def _compose(text: str, file: str) -> yaml.Node | None:
    try:
        return yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        raise _syntax_error(error, file) from error
    except RecursionError as error:
        raise ToolkitError("is nested too deeply", file, f"At most {MAX_DEPTH} levels are read.") from error
    # not only its own errors: an escape such as \UFFFFFFFF makes chr() fail
    except (yaml.YAMLError, ValueError, OverflowError, AttributeError) as error:
        raise ToolkitError(f"is not YAML: {_one_line(error)}", file) from error


def _syntax_error(error: yaml.MarkedYAMLError, file: str) -> ToolkitError:
    mark = error.problem_mark or error.context_mark
    place = f"{file}:{mark.line + 1}" if mark else file
    problem = error.problem or error.context or "it cannot be read"
    if "'\\t'" in problem:
        return ToolkitError("a tab where YAML allows spaces only", place, "Indent with spaces.")
    hint = None
    if "<block end>" in problem:
        problem, hint = "what begins here does not belong to what is before it", "Check the indentation and the quotes."
    elif "mapping values are not allowed" in problem:
        hint = "Put a text with ': ' in quotes, or check the indentation."
    elif "expected a single document" in error.context if error.context else False:
        hint = "One file is one document: remove the '---' line."
    column = f" (column {mark.column + 1})" if mark else ""
    return ToolkitError(f"is not YAML: {problem}{column}", place, hint)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


class _Walk:
    """Turns nodes into plain data; keeps lines and faults."""

    def __init__(self, file: str) -> None:
        self.lines: dict[KeyPath, int] = {}
        self.faults: list[Fault] = []
        self._file = file
        self._count = 0

    def value(self, node: yaml.Node, path: KeyPath) -> Any:
        """The plain data of a node."""
        line: int = node.start_mark.line + 1
        self.lines.setdefault(path, line)
        self._bound(path, line)
        if isinstance(node, yaml.MappingNode) and node.tag == _TAG + "map":
            return dict(self._items(node, path))
        if isinstance(node, yaml.SequenceNode) and node.tag == _TAG + "seq":
            return [self.value(item, (*path, i)) for i, item in enumerate(node.value)]
        try:
            return _scalar(node)
        except ValueError as error:
            self.faults.append(Fault(path, str(error), line=line))
            return None

    def _bound(self, path: KeyPath, line: int) -> None:
        self._count += 1
        if len(path) > MAX_DEPTH or self._count > MAX_VALUES:
            limit = f"At most {MAX_DEPTH} levels and {MAX_VALUES} values are read, aliases expanded."
            raise ToolkitError("is nested too deeply or holds too many values", f"{self._file}:{line}", limit)

    def _items(self, node: yaml.MappingNode, path: KeyPath) -> Iterator[tuple[str, Any]]:
        """Merged (``<<``) keys first, so that the mapping's own win."""
        own = [(key, value) for key, value in node.value if key.tag != _TAG + "merge"]
        for key, value in node.value:
            if key.tag == _TAG + "merge":
                yield from self._merged(value, path)
        seen: dict[str, int] = {}
        for key, value in own:
            line = key.start_mark.line + 1
            name = self._key(key, path, line)
            if name is None:
                continue
            if name in seen:
                what = f"'{name}' is written twice; first in line {seen[name]}"
                self.faults.append(Fault((*path, name), what, "Keep one of them.", line))
                continue
            below = (*path, name)
            seen[name] = self.lines[below] = line
            yield name, self.value(value, below)

    def _merged(self, node: yaml.Node, path: KeyPath) -> Iterator[tuple[str, Any]]:
        self._bound(path, node.start_mark.line + 1)
        parts = node.value if isinstance(node, yaml.SequenceNode) else [node]
        for part in reversed(parts):
            if isinstance(part, yaml.MappingNode):
                yield from self._items(part, path)
            else:
                what = "'<<' merges a mapping, or a list of mappings"
                self.faults.append(Fault(path, what, line=node.start_mark.line + 1))

    def _key(self, node: yaml.Node, path: KeyPath, line: int) -> str | None:
        try:
            name = _scalar(node)
        except ValueError as error:
            self.faults.append(Fault(path, f"a key {error}", line=line))
            return None
        if isinstance(name, str):
            return name
        hint = f'Write it in quotes: "{node.value}".'
        self.faults.append(Fault(path, f"the key '{node.value}' is not a text", hint, line))
        return None


def _scalar(node: yaml.Node) -> Any:
    if not isinstance(node, yaml.ScalarNode):
        raise ValueError("is neither a plain mapping, list nor value")
    if "\0" in node.value or any("\ud800" <= letter <= "\udfff" for letter in node.value):
        raise ValueError("holds a character that is no text (NUL, or half of a surrogate pair)")
    parse = _SCALARS.get(node.tag.removeprefix(_TAG))
    if parse is None:
        raise ValueError(f"has the tag '{node.tag}', which is not allowed here")
    return parse(node.value)


def _bool(text: str) -> bool:
    if text.lower() not in {"true", "false"}:
        raise ValueError(f"'{text}' is neither true nor false")
    return text.lower() == "true"


_SCALARS: dict[str, Callable[[str], Any]] = {
    "str": str, "int": int, "float": float, "bool": _bool, "null": lambda text: None,
}  # fmt: skip
