"""The house rules that a machine can check: who may look into whom, and how long a function gets."""

from __future__ import annotations

import ast
import re
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "toolkit"
CONTRACTS = (ROOT / "pyproject.toml").read_text(encoding="utf-8").partition("[tool.importlinter]")[2]


def test_imports_follow_the_arrows_of_the_architecture() -> None:
    lint_imports = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([lint_imports, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr


@pytest.mark.parametrize("room", sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py")))
def test_every_room_has_a_contract(room: str) -> None:
    in_layers = f'"{room}"' in CONTRACTS or f'"({room})"' in CONTRACTS
    assert in_layers or f'source_modules = ["toolkit.{room}"]' in CONTRACTS


def imported(room: str) -> set[str]:
    """The rooms that modules of this one import from, as ``room`` and ``room.module``."""
    found: set[str] = set()
    for file in [*(PACKAGE / room).rglob("*.py")] if (PACKAGE / room).is_dir() else [PACKAGE / f"{room}.py"]:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "toolkit":
                names = (f"{node.module}.{each.name}" for each in node.names)
                found |= {".".join(name.split(".")[1:3]) for name in names}
    return {name for name in found if name.partition(".")[0] != room}


def rows_of_rooms() -> dict[str, str]:
    """The table of rooms in the documentation: what each may look into."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    return dict(re.findall(r"^\| `([a-z]+)(?:/|\.py)`[^|]* \|[^|]*\| ([^|]*) \|$", page, re.MULTILINE))


def test_every_room_stands_in_the_table_of_the_architecture() -> None:
    assert {path.parent.name for path in PACKAGE.glob("*/__init__.py")} <= set(rows_of_rooms())


@pytest.mark.parametrize(("room", "allowed"), rows_of_rooms().items())
def test_a_room_looks_into_no_more_than_the_table_says(room: str, allowed: str) -> None:
    if allowed in ("everything", "the rooms below"):
        return
    everybodys = {path.stem for path in PACKAGE.glob("*.py") if path.stem != "workflow"} | {"__version__"}
    words = {each.split(" ")[0] for each in allowed.split(", ")}
    beyond = {name for name in imported(room) if name.partition(".")[0] not in everybodys | words and name not in words}
    assert beyond == set()


def test_the_command_line_answers_without_torch() -> None:
    code = "import sys, toolkit.cli; sys.exit(any(name in sys.modules for name in ('torch', 'numpy', 'transformers')))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def functions() -> Iterator[tuple[str, int]]:
    """Every function of the package: its place, and its lines without the docstring."""
    for file in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield f"{file.relative_to(ROOT)}:{node.lineno} {node.name}", length(node)


def length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    lines = (function.end_lineno or function.lineno) - function.lineno + 1
    first = function.body[0]
    if ast.get_docstring(function) is not None:
        lines -= (first.end_lineno or first.lineno) - first.lineno + 1
    return lines


def test_functions_are_short() -> None:
    lengths = dict(functions())
    ordered = sorted(lengths.values())
    assert statistics.median(ordered) <= 10
    assert ordered[int(0.9 * len(ordered))] < 35
    assert [place for place, lines in lengths.items() if lines > 60] == []


def test_a_docstring_does_not_count_as_length() -> None:
    (function,) = ast.parse('def f():\n    """One.\n\n    Two.\n    """\n    return 1\n').body
    assert isinstance(function, ast.FunctionDef)
    assert length(function) == 2
