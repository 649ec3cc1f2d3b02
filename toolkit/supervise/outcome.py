"""How an attempt ended or stalls, and what the machine shows of it: all that a diagnosis is made from."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from toolkit import processes
from toolkit.host import cgroup
from toolkit.host.gpu_use import DeviceUse
from toolkit.host.model import Holder
from toolkit.processes import Identity
from toolkit.supervise.logs import LogView

# As /proc/PID/stat names them; what a build of kernels or of an extension runs.
COMPILERS = frozenset(
    {"nvcc", "cicc", "ptxas", "cudafe++", "fatbinary", "nvlink", "ninja", "cc1plus", "cc1", "g++", "c++", "gcc",
     "clang", "clang++", "cmake"}
)  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """An attempt that ended, or stalls (``exit_status`` None).

    ``oom_killed``: the kernel killed something in its control group meanwhile; ``compiling``: it has a compiler below
    it; None: nobody could tell. ``others`` hold memory of its devices and do not belong to the deployment.
    ``quiet_s``: for how long nothing has moved in a start that lives; None: nobody said that it stands still.
    """

    service: str
    log: LogView
    exit_status: int | None
    oom_killed: bool | None = None
    compiling: bool | None = None
    others: tuple[Holder, ...] = ()
    quiet_s: float | None = None


@dataclass(frozen=True)
class OomCount:
    """The kills for want of memory that a control group had counted when an attempt began; None: unknown.

    ``own``: nothing but the attempt is in the group. Else a kill may have met a neighbour.
    """

    folder: Path | None
    before: int | None
    own: bool = False

    @classmethod
    def begun(
        cls, pid: int, sysfs: Path = Path("/sys"), proc: Path = processes.PROC, group: Path | None = None
    ) -> OomCount:
        """The count of the attempt's own ``group``; where that counts none, of the group that the supervisor is in."""
        if group is not None and (kills := cgroup.oom_kills(group)) is not None:
            return cls(group, kills, own=True)
        folder = cgroup.memory_folder(sysfs, proc, pid if group is None else os.getpid())
        return cls(folder, cgroup.oom_kills(folder) if folder else None)

    def grew(self) -> bool | None:
        """True when the kernel has killed since; None: unknown."""
        now = cgroup.oom_kills(self.folder) if self.folder else None
        return None if now is None or self.before is None else now > self.before


def is_compiling(members: Iterable[Identity], proc: Path = processes.PROC) -> bool:
    """True when one of the processes is a compiler, or what drives compilers."""
    found = (processes.stat(member.pid, proc) for member in members)
    return any(each.name in COMPILERS for each in found if each and not each.dead)


def others(
    devices: Collection[str], uses: Iterable[DeviceUse], cookie: str, proc: Path = processes.PROC
) -> tuple[Holder, ...]:
    """Who holds memory of these devices and was not started with a cookie that begins so (``NAME=VALUE``)."""
    holders = (holder for use in uses if use.uuid in devices for holder in use.holders)
    return tuple(each for each in holders if each.pid is None or not _carries(each.pid, cookie.encode(), proc))


def _carries(pid: int, begins: bytes, proc: Path) -> bool:
    return any(variable.startswith(begins) for variable in processes.environment(pid, proc) or ())
