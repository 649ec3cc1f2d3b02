"""From an attempt's log to a ``Failure``: the diagnosis, or the exit in plain words where the log does not say why."""

from __future__ import annotations

from dataclasses import replace

from toolkit.diagnose import Context, Ending, classify
from toolkit.supervise.failures import plain_diagnosis
from toolkit.supervise.lifecycle import Failure

STALL_S = 30.0  # after this long without progress a start is asked about


def diagnose(
    log_tail: str,
    exit_status: int | None,
    *,
    oom_killed: bool | None = None,
    compiling: bool | None = None,
    context: Context | None = None,
) -> Failure:
    """Why the attempt ended, or stalls (``exit_status`` None).

    ``oom_killed``: the control group counted an OOM kill; ``compiling``: the process has a compiler as a child; None:
    nobody looked.
    """
    ending = Ending(exit_status, oom_killed, compiling, STALL_S if exit_status is None else None)
    found = classify([log_tail], ending, context)
    if found.kind in ("unknown", "healthy"):
        return _plain(log_tail, exit_status, found.also)
    return Failure(found.summary, found.verdict, found.kind, found.culprit, found.line, found.advice)


def _plain(log_tail: str, exit_status: int | None, suspicious: tuple[str, ...]) -> Failure:
    failure = plain_diagnosis(log_tail, exit_status)
    if not suspicious:
        return failure
    return replace(failure, advice=f"Nothing known fits the log; its most suspicious lines: {' | '.join(suspicious)}")
