"""The one error boundary: every outcome becomes an exit code and, where something is wrong, one clear message.

0 done, 1 a person must change something, 2 wrong usage, 3 a fault of coexist, 4 not ready in time, 130 interrupted.
"""

from __future__ import annotations

import errno
import sys
import traceback
from pathlib import Path
from typing import NoReturn

import click

from toolkit.cli import interruption, output, streams
from toolkit.cli.root import root
from toolkit.errors import ToolkitError, UsageError
from toolkit.files import publish
from toolkit.home import Home

FAULT, INTERRUPTED = 3, 130
_ROOM = "Make room, or point COEXIST_HOME at another disk."
_RIGHTS = "Check its permissions; COEXIST_HOME may point at another folder."
OF_THE_MACHINE = {
    errno.ENOSPC: _ROOM,
    errno.EDQUOT: _ROOM,
    errno.EFBIG: "Raise the limit on file sizes ('ulimit -f').",
    errno.EACCES: _RIGHTS,
    errno.EPERM: _RIGHTS,
    errno.EROFS: _RIGHTS,
    errno.ENOTDIR: "A file is where a folder belongs: remove it, or point COEXIST_HOME at another folder.",
    errno.ENAMETOOLONG: "Choose a shorter path or name.",
    errno.EMFILE: "Raise the limit on open files ('ulimit -n').",
}


def main() -> NoReturn:
    """Runs the command of ``sys.argv`` and exits."""
    interruption.all_as_ctrl_c()
    streams.prepare()
    sys.exit(run(sys.argv[1:]))


def run(argv: list[str]) -> int:
    """The exit code of one command line."""
    try:
        code = _run(argv)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        streams.forget_output()
        return 0
    except streams.UnwritableError as error:
        streams.forget_output()
        problem = ToolkitError(f"cannot write the answer: {error.strerror}", "standard output", code="output")
        return output.error(problem, as_json=False)


def _run(argv: list[str]) -> int:
    as_json = "--json" in argv
    try:
        result = root.main(args=argv, prog_name="coexist", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except SystemExit as stop:  # click's own answer to a reader that left
        raise BrokenPipeError from stop
    except click.exceptions.NoArgsIsHelpError as error:
        output.say(error.format_message())
        return UsageError.exit_code
    except click.ClickException as error:
        return output.error(_usage(error), as_json)
    except (KeyboardInterrupt, click.Abort):
        return output.error(ToolkitError("interrupted", code="interrupted"), as_json, INTERRUPTED)
    except (BrokenPipeError, streams.UnwritableError):
        raise
    except ToolkitError as error:
        return output.error(error, as_json)
    except Exception as error:  # the boundary itself: whatever arrives here is the machine's or a fault of coexist
        if isinstance(error, OSError) and error.errno in OF_THE_MACHINE:
            return output.error(_of_the_machine(error), as_json)
        return output.error(_fault(error, argv), as_json, FAULT)


def _of_the_machine(error: OSError) -> ToolkitError:
    place = str(error.filename) if error.filename is not None else None
    return ToolkitError(error.strerror or str(error), place, OF_THE_MACHINE[error.errno or 0], code="machine")


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
    except (OSError, ToolkitError):
        return None
    return path
