"""From an attempt's log to a ``Failure``: the diagnosis, or the exit in plain words where the log does not say why."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from toolkit.diagnose import Context, Ending, Holder, classify
from toolkit.host import model as host
from toolkit.supervise.failures import plain
from toolkit.supervise.lifecycle import Failure
from toolkit.supervise.outcome import Outcome

_SILENCE = "silence"  # the pattern of a start that says nothing, and nothing is known of why


def diagnose(outcome: Outcome, context: Context | None = None) -> Failure:
    """Why the attempt ended, or stalls, from its whole log; ``context``: what the plan and the host say.

    A start that hangs for no known reason is tried again: it can be ended, which whoever only reads a log cannot do.
    """
    ending = Ending(outcome.exit_status, outcome.oom_killed, outcome.compiling, outcome.quiet_s)
    known = replace(context or Context(outcome.service), holders=_holders(outcome.others))
    found = classify(outcome.log.pieces(), ending, known)
    if found.kind in ("unknown", "healthy"):
        return _plain(outcome, found.also)
    if found.pattern == _SILENCE:
        return Failure(found.summary, "retry", found.kind, line=found.line)
    return Failure(found.summary, found.verdict, found.kind, found.culprit, found.line, found.advice)


def _holders(others: Iterable[host.Holder]) -> tuple[Holder, ...]:
    """Those whose memory the driver tells; neighbours of the same deployment have their share by plan."""
    return tuple(Holder(None, each.used_bytes, _name(each)) for each in others if each.used_bytes)


def _name(holder: host.Holder) -> str:
    if holder.pid is None:
        return "a process outside this container"
    return f"process {holder.pid}" + (f" ({holder.name})" if holder.name else "")


def _plain(outcome: Outcome, suspicious: tuple[str, ...]) -> Failure:
    failure = plain(outcome)
    if not suspicious or failure.advice:
        return failure
    return replace(failure, advice=f"Nothing known fits the log; its most suspicious lines: {' | '.join(suspicious)}")
