"""From an attempt's log to a ``Failure``: the diagnosis, or the exit in plain words where the log does not say why."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from toolkit.diagnose import Context, Ending, Holder, classify
from toolkit.host import model as host
from toolkit.supervise.failures import plain_diagnosis
from toolkit.supervise.lifecycle import Failure
from toolkit.supervise.outcome import Outcome

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
    return _failure([log_tail], log_tail, ending, context)


def diagnose_outcome(outcome: Outcome, context: Context | None = None) -> Failure:
    """The same from all that was seen of an attempt, and its whole log; ``context``: what the plan and the host say."""
    quiet_s = STALL_S if outcome.exit_status is None else None
    ending = Ending(outcome.exit_status, outcome.oom_killed, outcome.compiling, quiet_s)
    known = replace(context or Context(outcome.service), holders=_holders(outcome.others))
    return _failure(outcome.log.pieces(), outcome.log.tail(), ending, known)


def _holders(others: Iterable[host.Holder]) -> tuple[Holder, ...]:
    """Those whose memory the driver tells; neighbours of the same deployment have their share by plan."""
    return tuple(Holder(None, each.used_bytes, _name(each)) for each in others if each.used_bytes)


def _name(holder: host.Holder) -> str:
    if holder.pid is None:
        return "a process outside this container"
    return f"process {holder.pid}" + (f" ({holder.name})" if holder.name else "")


def _failure(pieces: Iterable[bytes | str], log_tail: str, ending: Ending, context: Context | None) -> Failure:
    found = classify(pieces, ending, context)
    if found.kind in ("unknown", "healthy"):
        return _plain(log_tail, ending.exit_status, found.also)
    return Failure(found.summary, found.verdict, found.kind, found.culprit, found.line, found.advice)


def _plain(log_tail: str, exit_status: int | None, suspicious: tuple[str, ...]) -> Failure:
    failure = plain_diagnosis(log_tail, exit_status)
    if not suspicious:
        return failure
    return replace(failure, advice=f"Nothing known fits the log; its most suspicious lines: {' | '.join(suspicious)}")
