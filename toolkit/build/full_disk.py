"""A full disk, as it shows in the exit status and output of a program."""

from __future__ import annotations

import signal
from pathlib import Path

from toolkit import files
from toolkit.errors import ToolkitError


def is_full_disk(status: int, output: str) -> bool:
    """Whether a process with this exit status and output met a full disk or a file size limit."""
    return status == -signal.SIGXFSZ or files.tells_of_full_disk(output)


def full_disk_error(place: Path) -> ToolkitError:
    """What a person is told then."""
    return files.full_disk_error(str(place))
