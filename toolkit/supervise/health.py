"""Whether a serving instance is right, busy or broken, from how it answers. Pure.

Busy is: 429, or no answer in time, while something advances. Broken is: a wrong or an error answer (also 503, also
nothing that listens), several times in a row; or several periods in a row without an answer and without progress.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal

from toolkit.supervise.lifecycle import Failure
from toolkit.supervise.window import Sample

IN_A_ROW = 3
_CPU_SHARE = 0.2  # of one core: more than answering our own probes takes
_RESIDENT_BYTES = 1024**2
# Counters that advance when work is done: tokens, and requests that ended well. Requests that were refused also count
# up while nothing works. Time and size histograms have a count of their own, so they are left out.
_WORK = re.compile(
    r"^(?P<name>[a-zA-Z_:][\w:]*)(?:\{(?P<labels>.*)\})?\s+(?P<value>[0-9.eE+]+)(?:\s+\d+)?$", re.MULTILINE
)
_TOKENS = re.compile(r"tokens?(?:_\w+)?_total$")
_REQUESTS = re.compile(r"requests?(?:_\w+)?_total$")
_DONE = re.compile(r"success|finish|complet")
_GOOD_STATUS = re.compile(r'(?:status|code|status_code)="2\d\d"')

Kind = Literal["right", "busy", "silent", "wrong"]


@dataclass(frozen=True)
class Answer:
    """How one question went; ``silent``: nothing came in time. ``reason`` in words, for the others than ``right``."""

    kind: Kind
    reason: str = ""


RIGHT = Answer("right")


@dataclass(frozen=True)
class Health:
    """What is remembered of earlier questions: ``wrong`` answers and ``quiet`` periods in a row."""

    wrong: int = 0
    quiet: int = 0

    @property
    def in_doubt(self) -> bool:
        """The last answer was a wrong one: worth asking again soon."""
        return self.wrong > 0


def judge(before: Health, answer: Answer, advanced: bool, what: str) -> tuple[Health, Failure | None]:
    """What is known after this answer, and the failure when that is enough to end the attempt.

    ``advanced``: something was done since the last question. ``what`` is asked, in words: ``deep probes``.
    """
    if answer.kind == "right":
        return Health(), None
    if answer.kind == "wrong":
        after = Health(before.wrong + 1, 0)
        summary = f"{IN_A_ROW} {what} in a row failed: {answer.reason}"
        return after, Failure(summary, "retry", "not_live") if after.wrong >= IN_A_ROW else None
    after = replace(before, quiet=0 if advanced else before.quiet + 1)
    summary = f"no answer and no progress over {IN_A_ROW} {what}: {answer.reason}"
    return after, Failure(summary, "retry", "stalled") if after.quiet >= IN_A_ROW else None


def done_work(metrics: str) -> float | None:
    """The sum of the counters of tokens and of requests that ended well; None: the page has no such counter."""
    found = [float(line["value"]) for line in _WORK.finditer(metrics) if _counts_work(line["name"], line["labels"])]
    return sum(found) if found else None


def _counts_work(name: str, labels: str | None) -> bool:
    if _TOKENS.search(name):
        return True
    done = _DONE.search(name) or _GOOD_STATUS.search(labels or "")
    return bool(_REQUESTS.search(name) and done)


@dataclass(frozen=True)
class Evidence:
    """A look at what an instance does; ``work``: its own count of work done, None: it does not tell."""

    sample: Sample
    work: float | None = None


def advanced(before: Evidence, after: Evidence) -> bool:
    """True when something was done between two looks.

    Where the program counts its work, its count alone says so: a hang may spin on the processors and go on logging.
    """
    if before.work is not None and after.work is not None:
        return after.work != before.work
    earlier, now = before.sample, after.sample
    return (
        now.log_bytes != earlier.log_bytes
        or now.resident_bytes > earlier.resident_bytes + _RESIDENT_BYTES
        or now.cpu_s - earlier.cpu_s > _CPU_SHARE * (now.at_s - earlier.at_s)
    )
