"""What the log of a loaded instance must say, or must not say."""

from __future__ import annotations

import re
from collections.abc import Sequence

from toolkit.runtimes.base import LogCheck
from toolkit.supervise.lifecycle import Failure
from toolkit.supervise.logs import LogView


def judge(checks: Sequence[LogCheck], log: LogView) -> Failure | None:
    """Why the attempt ends; None: the log says what it must and nothing else. Reads the whole log of the attempt."""
    if not checks:
        return None
    text = b"".join(log.pieces()).decode(errors="replace")
    for check in checks:
        match = re.search(check.pattern, text, re.MULTILINE)
        if (match is None) == check.wanted:
            return Failure(check.why, "stop", "log_check", line=_line(text, match))
    return None


def _line(text: str, match: re.Match[str] | None) -> str | None:
    """The whole line in which something was found."""
    if match is None:
        return None
    end = text.find("\n", match.end())
    return text[text.rfind("\n", 0, match.start()) + 1 : end if end >= 0 else len(text)].strip()
