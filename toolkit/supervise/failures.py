"""From what went wrong to a ``Failure``: in words, and whether another attempt can help."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import replace

from toolkit.errors import ToolkitError
from toolkit.masking import masked
from toolkit.supervise.lifecycle import Failure, Verdict
from toolkit.supervise.logs import last_line
from toolkit.supervise.outcome import Outcome
from toolkit.supervise.process import UNSEEN_STATUS
from toolkit.supervise.ranks import Death
from toolkit.supervise.window import Stall
from toolkit.units import format_duration
from toolkit.warm.model import CanaryResult, WarmupError


def describe_exit(exit_status: int) -> str:
    """An exit status in words; negative numbers are signals, as subprocess has them."""
    if exit_status == UNSEEN_STATUS:
        return "ended, unseen by its supervisor of the time"
    if exit_status >= 0:
        return f"exited with status {exit_status}"
    try:
        return f"was killed by {signal.Signals(-exit_status).name}"
    except ValueError:
        return f"was killed by signal {-exit_status}"


# Last words of a program that says the same at every start, and what to do. One line of them: nothing else is read
# when it ended for another reason later.
_HOPELESS = (
    (r"\bModuleNotFoundError: No module named '(?P<it>[^']+)'", "Install '{it}' in the service's environment."),
    (r": No module named (?P<it>[\w.]+)$", "Install '{it}' in the service's environment."),
    (r"\bcan't open file '(?P<it>[^']+)'", "Name a program file that is there."),
    (r"^(?:SyntaxError|IndentationError): (?P<it>.+)", "Correct the program, or use the Python it was written for."),
    (r"\berror: the following arguments are required: (?P<it>.+)", "Give the program its arguments: {it}."),
    (r"(?:^|: )(?P<it>[\w./+-]+): (?:command )?not found$", "Install '{it}', or correct its name."),
)
_LOOK_AT_STACKS = "The stacks of its processes (py-spy dump) show what it waits for; '{}' gives it longer."
_CANNOT_EXECUTE = (126, 127)  # as shells, and what pins before it executes, say it


def plain_diagnosis(log_tail: str, exit_status: int | None) -> Failure:
    """The exit status and the log's last line; ``exit_status`` None: it still runs.

    The verdict is ``stop`` where the last line tells what no other attempt can change.
    """
    what = describe_exit(exit_status) if exit_status is not None else "it lives"
    line = last_line(log_tail)
    if line is None:
        return Failure(f"{what}; its log is empty")
    found = Failure(f"{what}; last line of its log: {line}", line=line)
    return _hopeless(found, line, exit_status) if exit_status is not None and exit_status > 0 else found


def _hopeless(failure: Failure, line: str, exit_status: int) -> Failure:
    matches = ((re.search(expression, line), advice) for expression, advice in _HOPELESS)
    told = next(((match["it"], advice) for match, advice in matches if match), None)
    if told is None:
        return replace(failure, verdict="stop") if exit_status in _CANNOT_EXECUTE else failure
    return replace(failure, verdict="stop", culprit=told[0], advice=told[1].format(it=told[0]))


def plain(outcome: Outcome) -> Failure:
    """What is told without a classifier."""
    return plain_diagnosis(outcome.log.tail(), outcome.exit_status)


def stalled(found: Failure, stall: Stall, at: str | None = None) -> Failure:
    """The diagnosis of a process that lives but makes no progress; ``at``: what it said of its start last."""
    still = "its processors work, but its log, memory and files stand still"
    still = still if stall.spins else "its log, memory, files and processors stand still"
    last = f", last seen: {at}" if at else ""
    summary = f"no progress for {format_duration(stall.quiet_s)}: {still}{last}; {found.summary}"
    advice = found.advice or _LOOK_AT_STACKS.format("preload_window" if stall.spins else "quiet_window")
    return Failure(summary, found.verdict, "stalled", found.culprit, found.line, advice)


def not_working(failure: Failure, found: Failure) -> Failure:
    """What was seen of a process that lives, with the diagnosis of its log where that knows the reason."""
    if found.kind == "exit":  # nothing known fits the log
        return replace(failure, line=found.line, advice=found.advice)
    verdict = found.verdict if found.verdict in ("stop", "retry_after_cleanup") else failure.verdict
    summary = f"{failure.summary}: {found.summary}"
    return Failure(summary, verdict, failure.kind, found.culprit, found.line, found.advice)


def rank_died(death: Death, found: Failure) -> Failure:
    """A rank's death, and what the logs say of its reason where that is known."""
    known = found.kind != "exit"
    summary = f"{death}: {found.summary}" if known else str(death)
    return replace(found, summary=summary, kind=found.kind if known else "rank_died")


def stuck(pids: Sequence[int]) -> Failure:
    """Processes that outlive being killed."""
    shown = ", ".join(map(str, pids))
    advice = f"See what holds it: cat /proc/{pids[0]}/stack"
    return Failure(f"processes {shown} could not be killed", "stop", "stuck", advice=advice)


def without(failure: Failure, secrets: Sequence[str]) -> Failure:
    """The failure as it may be shown: a program's own words may hold what it was given to keep."""

    def shown(text: str | None) -> str | None:
        return None if text is None else masked(text, secrets)

    canary = failure.canary
    return replace(
        failure,
        summary=masked(failure.summary, secrets),
        culprit=shown(failure.culprit),
        line=shown(failure.line),
        advice=shown(failure.advice),
        canary=canary and replace(canary, got=masked(canary.got, secrets)),
    )


def from_error(error: ToolkitError, verdict: Verdict) -> Failure:
    """What coexist itself found wrong."""
    return Failure(error.what, verdict, error.code, advice=error.hint, culprit=error.where)


def from_warmup(error: WarmupError) -> Failure:
    """What the warm-up found wrong; a wrong answer is not tried again, since it would come again."""
    verdict: Verdict = "stop" if error.code == "canary_wrong" else "retry"
    found = Failure(error.what, verdict, error.code, advice=error.hint, canary=_canary(error.details.get("canary")))
    return replace(found, first_token_ms=tuple(error.details.get("first_token_ms", ())))


def _canary(found: object) -> CanaryResult | None:
    if isinstance(found, CanaryResult):
        return found
    if not isinstance(found, Mapping):
        return None
    return CanaryResult(bool(found.get("ok")), str(found.get("expected")), str(found.get("got")))
