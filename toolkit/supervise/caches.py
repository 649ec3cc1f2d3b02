"""The cache folder of one service, made ready for an attempt: local, writable, bounded, without stale locks.

A folder is named after the fingerprint of the environment: ``SERVICE/FINGERPRINT``. Nothing of the service runs while
it is prepared, so what is left there belongs to nobody.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from toolkit import processes
from toolkit.errors import ToolkitError
from toolkit.files import disk_errors
from toolkit.runtimes.environment import CACHE_FOLDERS
from toolkit.supervise.history import Cache
from toolkit.supervise.leftovers import Leftovers, is_lock
from toolkit.units import GIB, MIB, format_bytes

# Locks, renames and maps of compilers' caches need a local file system.
_NETWORK = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "lustre", "gpfs", "ceph", "beegfs", "glusterfs", "afs", "9p", "pvfs2"}
)
_LOCAL_FUSE = frozenset({"fuse.fuse-overlayfs", "fuse.mergerfs"})
MAX_OLD, MAX_BYTES, MIN_FREE_BYTES = 3, 32 * GIB, 64 * MIB
USED = ".used"  # dated at each start: the oldest of what is no longer used goes first
_WHERE_ELSE = "Point COEXIST_CACHE (or COEXIST_HOME) at a folder on a local disk."


@dataclass(frozen=True)
class Prepared:
    """``state``: whether compilers have left anything in it; ``notes``: what a person should know."""

    state: Cache = "cold"
    notes: tuple[str, ...] = ()


def prepare(folder: Path | None, proc: Path = processes.PROC) -> Prepared:
    """The folder is there and can be used.

    Raises: ToolkitError when it is on a network file system, cannot be written, or its disk is full.
    """
    if folder is None:
        return Prepared()
    _refuse_network(folder, proc)
    _make(folder)
    _refuse_full(folder)
    return Prepared("warm" if _filled(folder) else "cold", (*_unlocked(folder), *prune(folder)))


def _make(folder: Path) -> None:
    """The folder is there, and dated now."""
    what = "the cache folder cannot be used"
    try:
        with disk_errors(folder, what, lambda: MIN_FREE_BYTES):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            (folder / USED).write_bytes(b"")
    except OSError as error:
        hint = f"Remove what is in its way. {_WHERE_ELSE}"
        raise ToolkitError(f"{what}: {error.strerror}", str(folder), hint, code="not_writable") from error


def _refuse_network(folder: Path, proc: Path) -> None:
    kind = file_system(folder, proc)
    if kind is not None and is_network(kind):
        raise ToolkitError(
            f"the cache folder is on a network file system ({kind})", str(folder), _WHERE_ELSE, code="network_cache"
        )


def is_network(kind: str) -> bool:
    """Whether files of this kind of file system lie on another machine, as far as its name says."""
    return kind in _NETWORK or (kind.startswith("fuse.") and kind not in _LOCAL_FUSE)


def file_system(folder: Path, proc: Path = processes.PROC) -> str | None:
    """The kind of file system that the folder is on, or will be; None: unknown."""
    try:
        lines = (proc / "self" / "mountinfo").read_text(errors="replace").splitlines()
    except OSError:
        return None
    place = Path(os.path.realpath(folder))  # unlike resolve, it takes links that lead to themselves
    # Of mounts over each other the last one is seen.
    found = [
        (len(point.parts), number, kind) for number, (point, kind) in enumerate(_mounts(lines)) if _in(place, point)
    ]
    return max(found)[2] if found else None


def _mounts(lines: Iterable[str]) -> Iterator[tuple[Path, str]]:
    """``36 35 98:0 /root /mount/point rw shared:1 - ext4 /dev/sda rw``; spaces in names are ``\\040``."""
    for line in lines:
        before, _, after = line.partition(" - ")
        fields = before.split()
        if len(fields) > 4 and after:
            yield Path(fields[4].encode().decode("unicode_escape")), after.split()[0]


def _in(place: Path, point: Path) -> bool:
    return place == point or point in place.parents


def _refuse_full(folder: Path) -> None:
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < MIN_FREE_BYTES:
        raise ToolkitError(
            f"the disk of the cache folder is full: {format_bytes(free_bytes)} are free",
            str(folder),
            f"Free some space. {_WHERE_ELSE}",
            code="no_space",
            resource="disk",
            needed=MIN_FREE_BYTES,
            available=free_bytes,
        )


def _filled(folder: Path) -> bool:
    return any(names for below in CACHE_FOLDERS.values() if below != "xdg" for _, _, names in os.walk(folder / below))


def _unlocked(folder: Path) -> tuple[str, ...]:
    """Stale locks are gone; /proc is read only where there is a lock."""
    locked = any(is_lock(Path(name)) for _, _, names in os.walk(folder) for name in names)
    removed = Leftovers(folder).clean() if locked else ()
    return (f"removed from its cache folder: {', '.join(removed)}",) if removed else ()


def prune(folder: Path) -> tuple[str, ...]:
    """Of the other environments' caches the last used ones stay, at most ``MAX_OLD`` and ``MAX_BYTES`` in all."""
    others = sorted((each for each in folder.parent.iterdir() if _is_cache(each, folder)), key=_used_s, reverse=True)
    if not others:
        return ()
    room = MAX_BYTES - _size_bytes(folder)
    removed = []
    for number, old in enumerate(others):
        room -= _size_bytes(old)
        if number >= MAX_OLD or room < 0:
            shutil.rmtree(old, ignore_errors=True)
            removed.append(old.name)
    return (f"removed caches of earlier environments: {', '.join(removed)}",) if removed else ()


def _is_cache(path: Path, current: Path) -> bool:
    """A folder that ``prepare`` made for another environment."""
    return path != current and not path.is_symlink() and (path / USED).is_file()


def _used_s(folder: Path) -> float:
    try:
        return (folder / USED).stat().st_mtime
    except OSError:
        return 0.0


def _size_bytes(folder: Path) -> int:
    return sum(_file_bytes(os.path.join(where, name)) for where, _, names in os.walk(folder) for name in names)  # noqa: PTH118


def _file_bytes(path: str) -> int:
    try:
        return os.lstat(path).st_blocks * 512
    except OSError:
        return 0
