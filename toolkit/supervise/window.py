"""How long a stage may take: as long as progress is seen, and a quiet time without any. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

QUIET_S = 30.0  # without any progress, the attempt ends
# Processors that work may only spin, so they are not believed for ever. A big model on a few cores shows nothing else.
# Nor are reads that no disk sees: whoever watches processes reads /proc for ever.
BUSY_S = 900.0
_CPU_SHARE = 0.05  # of one core, over a quiet time: more than answering our own probes takes
_BYTES = 4 * 1024**2  # in a quiet time: less than a slow disk or network gives
_LATE_S = 5.0  # a look that comes later was not kept waiting by the service: the machine or its supervisor stood still


@dataclass(frozen=True)
class Sample:
    """A look at an instance that is starting: what it has done so far, and what it holds.

    ``log_bytes`` are its own words; ``io_bytes`` were read or written, ``disk_bytes`` by disks; ``gpu_bytes`` None: not
    asked. ``compilers`` were seen below it so far; ``compiling``: one runs.
    """

    at_s: float
    log_bytes: int = 0
    resident_bytes: int = 0
    cpu_s: float = 0.0
    io_bytes: int = 0
    disk_bytes: int = 0
    gpu_bytes: int | None = None
    compilers: int = 0
    compiling: bool = False


def grew(low: Sample, now: Sample) -> bool:
    """True when something grew that a hang leaves as it is: its log, its memory, its files, its compilers."""
    before = now.gpu_bytes if low.gpu_bytes is None else low.gpu_bytes
    return (
        now.log_bytes > low.log_bytes
        or now.compilers > low.compilers
        or now.resident_bytes > low.resident_bytes + _BYTES
        or now.disk_bytes > low.disk_bytes + _BYTES
        or (now.gpu_bytes or 0) > (before or 0) + _BYTES
    )


def lowest(low: Sample, now: Sample) -> Sample:
    """The least of both, at the later time: what ended took its counts with it, and what was freed may grow again."""
    gpu = [size for size in (low.gpu_bytes, now.gpu_bytes) if size is not None]
    return replace(
        now,
        resident_bytes=min(low.resident_bytes, now.resident_bytes),
        cpu_s=min(low.cpu_s, now.cpu_s),
        io_bytes=min(low.io_bytes, now.io_bytes),
        disk_bytes=min(low.disk_bytes, now.disk_bytes),
        gpu_bytes=min(gpu, default=None),
    )


@dataclass(frozen=True)
class Stall:
    """For how long nothing was seen; ``spins``: of anything but its processors, which work."""

    quiet_s: float
    spins: bool = False


@dataclass(frozen=True)
class Window:
    """One stage's time. It ends ``quiet_s`` after the last progress.

    Surely progress is what grew and what the program did. Processors that work, and reads and writes that no disk
    sees, count for ``busy_s``; a compiler that runs, and an answer "not yet", count for ``length_s``.
    """

    opened_s: float
    length_s: float
    quiet_s: float
    busy_s: float
    low: Sample
    progress_s: float
    sure_s: float
    worked_s: float

    @property
    def deadline_s(self) -> float:
        return self.progress_s + self.quiet_s

    @property
    def moved(self) -> bool:
        """There surely was progress since it was opened."""
        return self.sure_s > self.opened_s

    def noted(self, now_s: float) -> Window:
        """After the program did something that it was asked for."""
        return replace(self, sure_s=now_s, progress_s=now_s)

    def put_off(self, now_s: float) -> Window:
        """After the program answered that it is not ready yet."""
        return replace(self, progress_s=now_s) if now_s - self.opened_s <= self.length_s else self

    def held_up(self, now_s: float) -> Window:
        """After whom it asked kept coexist waiting until now: that time counts."""
        return replace(self, low=replace(self.low, at_s=now_s))

    def looked(self, now: Sample) -> Window:
        """After a look."""
        late_s = now.at_s - self.low.at_s
        window = self._later(late_s, now.at_s) if late_s > _LATE_S else self
        if grew(window.low, now):
            return replace(window.noted(now.at_s), low=now)
        low = lowest(window.low, now)
        found = window.put_off(now.at_s) if now.compiling else window
        if now.cpu_s - low.cpu_s <= _CPU_SHARE * self.quiet_s and now.io_bytes - low.io_bytes <= _BYTES:
            return replace(found, low=low)
        counts = now.at_s - window.opened_s <= self.busy_s
        progress_s = now.at_s if counts else found.progress_s
        worked = replace(low, cpu_s=now.cpu_s, io_bytes=now.io_bytes)
        return replace(found, low=worked, progress_s=progress_s, worked_s=now.at_s)

    def stall(self, now_s: float) -> Stall:
        """What is told once it has ended."""
        if now_s - self.worked_s < self.quiet_s and self.worked_s > self.sure_s:
            return Stall(now_s - self.sure_s, spins=True)
        return Stall(now_s - max(self.sure_s, self.worked_s))

    def _later(self, seconds: float, now_s: float) -> Window:
        """As if that time had not passed."""
        times = {name: getattr(self, name) for name in ("opened_s", "progress_s", "sure_s", "worked_s")}
        return replace(self, **{name: min(at_s + seconds, now_s) for name, at_s in times.items()})


def opened(now: Sample, length_s: float, quiet_s: float | None = None, busy_s: float = BUSY_S) -> Window:
    """A window that opens with this look; without ``quiet_s`` that is ``QUIET_S``, or the length where it is less."""
    quiet_s = min(QUIET_S, length_s) if quiet_s is None else quiet_s
    return Window(now.at_s, length_s, quiet_s, max(length_s, busy_s), now, now.at_s, now.at_s, now.at_s)
