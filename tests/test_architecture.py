"""The house rules that a machine can check: who may look into whom, and how long a function gets."""

from __future__ import annotations

import ast
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
