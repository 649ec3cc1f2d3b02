"""The files of a launch: they are there, whole, before its process is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from toolkit.files import disk_errors, write_atomic


def write(files: Mapping[Path, str]) -> None:
    """Leaves every file with exactly its text, readable by this user alone; folders are made.

    Raises: ToolkitError when the disk is full, closed or read-only.
    """
    for path, text in files.items():
        with disk_errors(path.parent, f"cannot make the folder of '{path.name}'"):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomic(path, text)
