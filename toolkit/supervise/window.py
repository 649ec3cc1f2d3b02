"""How long a stage may take: its window, extended while progress is seen. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

QUIET_S = 30.0  # no progress for so long ends an extension
_CPU_SHARE = 0.2  # of one core: more than answering our own probes takes
_RESIDENT_BYTES = _READ_BYTES = 1024**2


@dataclass(frozen=True)
class Sample:
    """A look at an instance that is starting."""

    at_s: float
    log_bytes: int = 0
    resident_bytes: int = 0
    cpu_s: float = 0.0
    read_bytes: int = 0


def progressed(before: Sample, after: Sample) -> bool:
    """True when the log or the memory grew, files were read, or the processors worked, between two looks."""
    return (
        after.log_bytes != before.log_bytes
        or after.resident_bytes > before.resident_bytes + _RESIDENT_BYTES
        or after.read_bytes > before.read_bytes + _READ_BYTES
        or after.cpu_s - before.cpu_s > _CPU_SHARE * (after.at_s - before.at_s)
    )


@dataclass(frozen=True)
class Window:
    """One stage's time: open for ``length_s``, and then until ``QUIET_S`` pass without progress."""

    opened_s: float
    length_s: float
    progress_s: float

    @property
    def deadline_s(self) -> float:
        return max(self.opened_s + self.length_s, self.progress_s + min(QUIET_S, self.length_s))

    def noted(self, now_s: float) -> Window:
        """The window after progress was seen now."""
        return replace(self, progress_s=now_s)


def opened(now_s: float, length_s: float) -> Window:
    """A window that opens now."""
    return Window(now_s, length_s, now_s)
