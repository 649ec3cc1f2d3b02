"""After the start: is every thread of every process where it was planned?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from toolkit.units import format_cpu_list, parse_cpu_list

PROC = Path("/proc")


@dataclass(frozen=True)
class Thread:
    """One thread and the logical CPUs that it may run on."""

    pid: int
    tid: int
    name: str
    cpus: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.name} (pid {self.pid}, thread {self.tid}) may run on {format_cpu_list(self.cpus)}"


@dataclass(frozen=True)
class Report:
    """``drifting``: threads that may run outside the plan; ``unseen``: processes that were gone or may not be read."""

    threads: int
    drifting: tuple[Thread, ...]
    unseen: tuple[int, ...]

    @property
    def on_plan_percent(self) -> float | None:
        """None when no thread was seen."""
        return 100.0 * (self.threads - len(self.drifting)) / self.threads if self.threads else None


def verify(pids: Iterable[int], planned_cpus: Iterable[int], proc: Path = PROC) -> Report:
    """Every thread of these processes against the plan; a thread that pinned itself to a part of it is on plan."""
    planned = set(planned_cpus)
    threads: list[Thread] = []
    unseen = []
    for pid in pids:
        seen = list(_threads(pid, proc))
        threads += seen
        if not seen:
            unseen.append(pid)
    drifting = tuple(thread for thread in threads if not planned.issuperset(thread.cpus))
    return Report(len(threads), drifting, tuple(unseen))


def _threads(pid: int, proc: Path) -> Iterator[Thread]:
    try:
        tasks = sorted((proc / str(pid) / "task").iterdir())
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return
    for task in tasks:
        if fields := _status(task / "status"):
            yield Thread(pid, int(task.name), fields["Name"], parse_cpu_list(fields["Cpus_allowed_list"]))


def _status(path: Path) -> dict[str, str]:
    """The fields of a status file; none of a thread that ended meanwhile, a zombie's included."""
    try:
        lines = path.read_text(errors="replace").splitlines()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return {}
    fields = {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return {} if fields.get("State", "Z")[:1] in ("Z", "X") else fields
