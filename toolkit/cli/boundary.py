"""The one error boundary: every outcome becomes an exit code and, where something is wrong, one clear message.

0 done, 1 a person must change something, 2 wrong usage, 3 a fault of coexist, 4 not ready in time, 130 interrupted.
"""

from __future__ import annotations

import os
import sys
import traceback
from io import TextIOWrapper
from pathlib import Path
from typing import NoReturn

import click

from toolkit.cli import output
from toolkit.cli.root import root
from toolkit.errors import ToolkitError, UsageError
from toolkit.files import publish
from toolkit.home import Home

FAULT, INTERRUPTED = 3, 130


def main() -> NoReturn:
    """Runs the command of ``sys.argv`` and exits."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal that lacks a character shows its number
    sys.exit(run(sys.argv[1:]))


def run(argv: list[str]) -> int:
    """The exit code of one command line."""
    as_json = "--json" in argv
    try:
        result = root.main(args=argv, prog_name="coexist", standalone_mode=False)
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.ClickException as error:
        return output.error(_usage(error), as_json)
    except (KeyboardInterrupt, click.Abort):
        return output.error(ToolkitError("interrupted", code="interrupted"), as_json, INTERRUPTED)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except ToolkitError as error:
        return output.error(error, as_json)
    except Exception as error:  # the boundary itself: whatever arrives here is a fault of coexist
        return output.error(_fault(error, argv), as_json, FAULT)


def _usage(error: click.ClickException) -> UsageError:
    context = getattr(error, "ctx", None)
    path = context.command_path if context else "coexist"
    return UsageError(error.format_message(), hint=f"See '{path} --help'.", code="usage")


def _fault(error: Exception, argv: list[str]) -> ToolkitError:
    command = argv[0] if argv else "coexist"
    report = _write_report("".join(traceback.format_exception(type(error), error, error.__traceback__)))
    return ToolkitError(
        f"coexist itself failed in '{command}': {type(error).__name__}: {error}",
        hint=f"Please report this fault with {report} attached." if report else "Please report this fault.",
        code="fault",
        report=str(report) if report else None,
    )


def _write_report(text: str) -> Path | None:
    try:
        path = Home.find().root / "fault.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        publish(path, text.encode(errors="backslashreplace"))
    except OSError:
        return None
    return path
