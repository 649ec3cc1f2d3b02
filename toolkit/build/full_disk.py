"""A full disk, as it shows in the output of compilers and libraries, where no error number comes through."""

from __future__ import annotations

import signal
from pathlib import Path

from toolkit.errors import ToolkitError

_TEXTS = ("No space left on device", "File too large", "File size limit exceeded", "Disk quota exceeded")


def is_full_disk(status: int, output: str) -> bool:
    """Whether a process with this exit status and output met a full disk or a file size limit."""
    return status == -signal.SIGXFSZ or any(text in output for text in _TEXTS)


def full_disk_error(place: Path) -> ToolkitError:
    """What a person is told then."""
    return ToolkitError(
        "no space is left for the engine, or a file size limit is too low",
        str(place),
        "Free some space, raise 'ulimit -f', run 'coexist engines prune', or point COEXIST_HOME at a larger disk.",
        code="no_space",
        resource="disk",
    )
