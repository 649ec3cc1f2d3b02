"""Standard output for answers, standard error for everything said on the way."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from toolkit.errors import ManyFaultsError, ToolkitError

if TYPE_CHECKING:
    from rich.console import Console


WIDE = 160
"""Columns of a table in a file or a pipe, where no terminal says how many there are."""


def console(stderr: bool = False) -> Console:
    """A rich console; colours and bars only on a terminal.

    Brackets are text, and lines of an answer are never broken: a command or a path is there to be copied.
    """
    from rich.console import Console

    told = (sys.stderr if stderr else sys.stdout).isatty() or "COLUMNS" in os.environ
    return Console(stderr=stderr, highlight=False, markup=False, soft_wrap=not stderr, width=None if told else WIDE)


def document(value: dict[str, Any]) -> None:
    """One JSON document on one line, in ASCII: file names need not be UTF-8, nor the terminal."""
    sys.stdout.write(json.dumps({"schema": 1, **value}) + "\n")
    sys.stdout.flush()


def say(text: str) -> None:
    """A line for a person on standard error."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def line(text: str, *, now: bool = False) -> None:
    """A line of the answer on standard output; ``now``: whoever reads it gets it at once."""
    sys.stdout.write(text + "\n")
    if now:
        sys.stdout.flush()


def error(problem: ToolkitError, as_json: bool, exit_code: int | None = None) -> int:
    """Tells the problem (JSON on standard output when asked for) and returns the exit code."""
    if as_json:
        document({"error": problem.document()})
    else:
        for text in _error_lines(problem):
            say(text)
    return problem.exit_code if exit_code is None else exit_code


def _error_lines(problem: ToolkitError) -> list[str]:
    if isinstance(problem, ManyFaultsError):
        return [text for fault in problem.errors for text in _error_lines(fault)]
    place = f"{problem.where}: " if problem.where else ""
    told = [f"error: {place}{problem.what}", *_diagnosis_lines(problem.details.get("diagnosis"))]
    return [*told, *([f"  hint: {problem.hint}"] if problem.hint else [])]


def _diagnosis_lines(diagnosis: Mapping[str, str | None] | None) -> list[str]:
    """What a failed start is called, who is guilty, and the line that decides."""
    if not diagnosis:
        return []
    kind = f"{diagnosis['class']} ({(diagnosis['verdict'] or '').replace('_', ' ')})"
    rows = [("class", kind), ("guilty", diagnosis["culprit"]), ("line", diagnosis["line"])]
    return [f"  {name}: {text}" for name, text in rows if text]
