"""The programs an environment's distributions install, and which Python each of them starts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from toolkit.environments.model import Distribution, Layout, Script

MAX_HEAD_BYTES = 1024
# Long paths do not fit into a first line; installers then write: #!/bin/sh, ''''exec' "/path/python" "$0" "$@"
LONG_FORM = re.compile(r"""^'''exec' "?([^"\n]+?)"? "\$0\"""", re.MULTILINE)


def installed(distributions: Iterable[Distribution], layout: Layout) -> Iterator[Script]:
    """Every console script, beside the interpreter; none where there is no interpreter."""
    if layout.executable is None:
        return
    for distribution in distributions:
        for entry in distribution.entry_points:
            if entry.group == "console_scripts":
                yield _script(entry.name, distribution.name, layout.executable.parent)


def _script(name: str, distribution: str, folder: Path) -> Script:
    path = folder / name
    head = _head(path)
    return Script(name, distribution, None if head is None else path, _interpreter(head or ""))


def _head(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            return file.read(MAX_HEAD_BYTES).decode("utf-8", "replace")
    except (OSError, ValueError):
        return None


def _interpreter(head: str) -> Path | None:
    first = head.partition("\n")[0]
    if not first.startswith("#!"):
        return None
    words = first[2:].split()
    long = LONG_FORM.search(head)
    if words and words[0].endswith("/sh") and long:
        return Path(long[1])
    return Path(words[0]) if words and "python" in words[0].rsplit("/", 1)[-1] else None
