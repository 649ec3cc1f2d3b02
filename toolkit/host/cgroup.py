"""What the control groups above this process leave it: version 1, version 2, and both at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

from toolkit.host.files import read_cpus, read_int, read_text, to_int

# Version 1 writes "no limit" as the largest multiple of a page; no machine has 1 PiB.
_NO_LIMIT_BYTES = 1 << 50


@dataclass(frozen=True)
class Cgroup:
    """Limits of the groups this process is in; None: no limit, or unknown. ``cpu_quota`` in CPUs."""

    version: Literal[1, 2] | None = None
    cpus: tuple[int, ...] | None = None
    mems: tuple[int, ...] | None = None
    cpu_quota: float | None = None
    memory_bytes: int | None = None
    memory_used_bytes: int | None = None


@dataclass(frozen=True)
class _Mount:
    version: Literal[1, 2]
    controllers: frozenset[str]
    root: PurePosixPath
    folder: Path


def read(sysfs: Path, proc: Path) -> Cgroup:
    """Limits found through ``/proc/self/cgroup`` and ``mountinfo``; the tightest of all groups above counts."""
    mounts = list(_mounts(read_text(proc / "self/mountinfo") or "", sysfs))
    paths = _paths(read_text(proc / "self/cgroup") or "")
    memory, cpu, cpuset = (_folders(name, mounts, paths) for name in ("memory", "cpu", "cpuset"))
    limit, used = _memory(memory)
    return Cgroup(
        version=_version(mounts, paths),
        cpus=_first_list(cpuset, "cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus"),
        mems=_first_list(cpuset, "cpuset.mems.effective", "cpuset.effective_mems", "cpuset.mems"),
        cpu_quota=min((quota for folder in cpu if (quota := _quota(folder)) is not None), default=None),
        memory_bytes=limit,
        memory_used_bytes=used,
    )


def memory_folder(sysfs: Path, proc: Path, pid: int) -> Path | None:
    """The control group that counts the memory of the process; None: there is none, or it cannot be seen."""
    mounts = list(_mounts(read_text(proc / "self/mountinfo") or "", sysfs))
    paths = _paths(read_text(proc / str(pid) / "cgroup") or "")
    return next(iter(_folders("memory", mounts, paths)), None)


def unified_folder(sysfs: Path, proc: Path, pid: int) -> Path | None:
    """The process's control group of version 2; None: there is none, or it lies outside of what is mounted here."""
    mounts = _mounts(read_text(proc / "self/mountinfo") or "", sysfs)
    mount = next((each for each in mounts if each.version == 2), None)
    path = _paths(read_text(proc / str(pid) / "cgroup") or "").get("")
    if mount is None or path is None or ".." in path.parts or not path.is_relative_to(mount.root):
        return None
    folder = mount.folder / path.relative_to(mount.root)
    return folder if folder.is_dir() else None


def oom_kills(folder: Path) -> int | None:
    """How many processes of the group and those below it the kernel has killed for want of memory; None: unknown."""
    for name in ("memory.events", "memory.oom_control"):  # of version 2, of version 1
        for line in (read_text(folder / name) or "").splitlines():
            if line.startswith("oom_kill "):
                return to_int(line.split()[1])
    return None


def _mounts(mountinfo: str, sysfs: Path) -> Iterator[_Mount]:
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        before, after = left.split(), right.split()
        if len(before) < 5 or len(after) < 3 or after[0] not in ("cgroup", "cgroup2"):
            continue
        version: Literal[1, 2] = 1 if after[0] == "cgroup" else 2
        options = frozenset(after[2].split(",")) if version == 1 else frozenset[str]()
        yield _Mount(version, options, PurePosixPath(before[3]), _below(sysfs, before[4]))


def _below(sysfs: Path, mount_point: str) -> Path:
    point = PurePosixPath(mount_point)
    return sysfs / point.relative_to("/sys") if point.is_relative_to("/sys") else Path(mount_point)


def _paths(cgroup: str) -> dict[str, PurePosixPath]:
    """Group of this process by controller; the key '' is version 2."""
    paths: dict[str, PurePosixPath] = {}
    for line in cgroup.splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        paths.update({name: PurePosixPath(path) for name in controllers.split(",")})
    return paths


def _version(mounts: list[_Mount], paths: dict[str, PurePosixPath]) -> Literal[1, 2] | None:
    if any("memory" in mount.controllers for mount in mounts) and "memory" in paths:
        return 1
    versions = {mount.version for mount in mounts}
    return 2 if 2 in versions else 1 if versions else None


def _folders(controller: str, mounts: list[_Mount], paths: dict[str, PurePosixPath]) -> list[Path]:
    """Folders of the groups with this controller, from our own up to the mount."""
    own = [mount for mount in mounts if controller in mount.controllers and controller in paths]
    unified = [mount for mount in mounts if mount.version == 2 and "" in paths]
    mount = next(iter(own or unified), None)
    if mount is None:
        return []
    leaf = mount.folder / _relative(paths[controller if own else ""], mount.root)
    folders = [leaf, *leaf.parents]
    return [folder for folder in folders[: folders.index(mount.folder) + 1] if folder.is_dir()]


def _relative(path: PurePosixPath, root: PurePosixPath) -> PurePosixPath:
    """The group's path below the mount; the mount itself when our group lies outside of what is mounted."""
    if ".." in path.parts or not path.is_relative_to(root):
        # A container sees its own group as the mount's root, while the path may be the host's.
        return PurePosixPath() if ".." in path.parts or root != PurePosixPath("/") else path.relative_to("/")
    return path.relative_to(root)


def _memory(folders: list[Path]) -> tuple[int | None, int | None]:
    """The tightest limit and the use of the group that has it (without a limit: of our own)."""
    limits = [(limit, folder) for folder in folders if (limit := _limit(folder)) is not None]
    limit, folder = min(limits, key=lambda pair: pair[0], default=(None, folders[0] if folders else None))
    if folder is None:
        return None, None
    used = read_int(folder / "memory.current")
    return limit, used if used is not None else read_int(folder / "memory.usage_in_bytes")


def _limit(folder: Path) -> int | None:
    limit = to_int(read_text(folder / "memory.max") or read_text(folder / "memory.limit_in_bytes"))
    return limit if limit is not None and limit < _NO_LIMIT_BYTES else None


def _quota(folder: Path) -> float | None:
    text = read_text(folder / "cpu.max")
    words = text.split() if text else [read_text(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period")]
    quota, period = (to_int(word) for word in (*words, None, None)[:2])
    return quota / period if quota and period and quota > 0 else None


def _first_list(folders: list[Path], *names: str) -> tuple[int, ...] | None:
    lists = (read_cpus(folder / name) for folder in folders for name in names)
    return next((found for found in lists if found), None)
