"""The engine store: an engine is either whole and published, or not there.

``ROOT/engines/<first 16 digits of the fingerprint>/`` holds published engines. Beside them, on the same file system:
``.staging`` (being built), ``.trash`` (being removed), ``.locks``, ``.history.json``, ``.hashes.json``.
"""

from __future__ import annotations

import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolkit.errors import ToolkitError
from toolkit.files import disk_errors, fsync
from toolkit.processes import ProcessId, boot_id, is_alive, this_process
from toolkit.store import history, locks, manifest
from toolkit.store.manifest import Fault
from toolkit.store.publish import exchange
from toolkit.units import format_bytes, format_duration

Report = Callable[[str], None]
Build = Callable[[Path], Mapping[str, Any]]
_ID_DIGITS = 16
_BOOT_DIGITS = 8


@dataclass(frozen=True)
class Entry:
    """A published engine. ``manifest`` is the whole document; what the builder said of it is ``build``."""

    name: str
    path: Path
    fingerprint: str
    reused: bool
    manifest: Mapping[str, Any]

    @property
    def build(self) -> Mapping[str, Any]:
        facts: Mapping[str, Any] = self.manifest["build"]
        return facts

    @property
    def size_bytes(self) -> int:
        return sum(row["size"] for row in self.manifest["files"].values())


@dataclass(frozen=True)
class Pruned:
    """What a prune removed (or would remove), what it left because it is in use, and the disk space of it all."""

    removed: tuple[Entry, ...]
    in_use: tuple[Entry, ...]
    leftovers: tuple[Path, ...]
    freed_bytes: int


class Store:
    """Engines under one root. Any number of processes may use it at once."""

    def __init__(self, root: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.root = root
        self.engines = root / "engines"
        self.hash_cache = self.engines / ".hashes.json"
        self._staging = self.engines / ".staging"
        self._trash = self.engines / ".trash"
        self._locks = self.engines / ".locks"
        self._history = self.engines / ".history.json"
        self._clock = clock

    def ensure(
        self, name: str, fingerprint: str, build: Build, *, force: bool = False, report: Report | None = None
    ) -> Entry:
        """The engine with this fingerprint, reused or built now by ``build(folder)``, which says what it made.

        ``report`` gets progress lines, also while another process builds the same engine.

        Raises: ToolkitError when the disk is full or closed, or the engine that is there was damaged.
        """
        say = report or _say_nothing
        if not force and (entry := self._untouched(name, fingerprint)):
            return entry
        self._make_folders()
        with locks.exclusive(self._lock_path(fingerprint), self._waiting(name, say), self._clock):
            self.sweep()
            if not force and (entry := self._untouched(name, fingerprint) or self._proven(name, fingerprint, say)):
                return entry
            return self._build(name, fingerprint, build, say)

    def find(self, fingerprint: str) -> Entry | None:
        """The published engine with this fingerprint; None when there is none.

        Raises: ToolkitError when its manifest is damaged or newer than this coexist.
        """
        path = self.path_of(fingerprint)
        document = manifest.read(path)
        if document is None:
            return None
        if document["fingerprint"] != fingerprint:
            other = document["fingerprint"]
            raise ToolkitError(f"holds another engine ({other})", str(path), "Remove it.", code="engine_damaged")
        return Entry(document["name"], path, fingerprint, True, document)

    def path_of(self, fingerprint: str) -> Path:
        """Where the engine with this fingerprint is, or will be."""
        return self.engines / fingerprint[:_ID_DIGITS]

    def entries(self) -> tuple[Entry, ...]:
        """Every published engine whose manifest can be read, by name."""
        found = [entry for entry, _ in self._scan() if entry]
        return tuple(sorted(found, key=lambda entry: (entry.name, entry.fingerprint)))

    def unreadable(self) -> tuple[Fault, ...]:
        """Folders among the engines that are none: manifest missing, damaged or too new."""
        return tuple(fault for _, fault in self._scan() if fault)

    def check(self, entry: Entry) -> tuple[Fault, ...]:
        """Files touched since publishing, by size, mtime and inode; what a boot can afford."""
        return manifest.check(entry.path, entry.manifest)

    def verify(self, entry: Entry) -> tuple[Fault, ...]:
        """Files whose content is not what was published, by full hashes."""
        return manifest.verify(entry.path, entry.manifest)

    def use(self, entry: Entry) -> locks.Use:
        """A hold on the engine, for a ``with`` block or to be closed: prune and ``force`` leave its files alone.

        Raises: ToolkitError when it was removed meanwhile.
        """
        return locks.use(entry.path)

    def adopt(self, folder: Path, document: Mapping[str, Any] | None = None, report: Report | None = None) -> Entry:
        """The engine in a folder made elsewhere, copied into the store; without ``document`` its own manifest is used.

        Raises: ToolkitError when it has no manifest, or its files are not what the manifest says.
        """
        described = manifest.read(folder) if document is None else manifest.validated(document, folder)
        if described is None:
            hint = "Name a folder that coexist published."
            raise ToolkitError("has no manifest.json", str(folder), hint, code="engine_missing")
        if faults := manifest.verify(folder, described):
            raise _damaged(described["name"], folder, faults)

        def copy(staging: Path) -> Mapping[str, Any]:
            for relative in described["files"]:
                (staging / relative).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(folder / relative, staging / relative)
            return dict(described["build"])

        return self.ensure(described["name"], described["fingerprint"], copy, report=report)

    def prune(self, keep: set[str], dry_run: bool = False) -> Pruned:
        """Every engine but those with a fingerprint in ``keep`` or in use is removed, and all leftovers."""
        self._make_folders()
        leftovers = self._leftovers()
        freed_bytes = sum(_disk_bytes(path) for path in leftovers)
        if not dry_run:
            self.sweep()
        removed, in_use = [], []
        for entry in self.entries():
            if entry.fingerprint in keep:
                continue
            size_bytes = _disk_bytes(entry.path)
            if self._retire(entry, dry_run):
                removed.append(entry)
                freed_bytes += size_bytes
            else:
                in_use.append(entry)
        return Pruned(tuple(removed), tuple(in_use), tuple(leftovers), freed_bytes)

    def sweep(self) -> None:
        """What dead builds and interrupted removals left is gone."""
        for path in self._leftovers():
            # Another process may sweep the same one.
            with suppress(FileNotFoundError):
                self._remove(path)

    def last(self, name: str) -> history.Past | None:
        """How long the last build of this name took and how big it was; None when none is remembered."""
        return history.last(self._history, name)

    def _untouched(self, name: str, fingerprint: str) -> Entry | None:
        entry = self.find(fingerprint)
        if entry is None or self.check(entry):
            return None
        return Entry(name, entry.path, fingerprint, True, entry.manifest)

    def _proven(self, name: str, fingerprint: str, say: Report) -> Entry | None:
        """An engine whose files were touched (copied, restored) but hold what was published; it is stamped anew."""
        entry = self.find(fingerprint)
        if entry is None:
            return None
        say(f"the files of engine '{name}' were touched; reading all of them")
        if faults := self.verify(entry):
            raise _damaged(name, entry.path, faults)
        document = manifest.restamped(entry.path, entry.manifest)
        manifest.write(entry.path, document)
        return Entry(name, entry.path, fingerprint, True, document)

    def _build(self, name: str, fingerprint: str, build: Build, say: Report) -> Entry:
        past = self.last(name)
        say(f"building engine '{name}'" + (f"; it took {format_duration(past.seconds)} last time" if past else ""))
        started_s = self._clock()
        with self._new_staging(name, fingerprint) as staging:
            made = build(staging)
            say(f"hashing and syncing {format_bytes(_content_bytes(staging))}")
            seconds = self._clock() - started_s
            document = manifest.seal(staging, name, fingerprint, made, seconds)
            path = self.path_of(fingerprint)
            self._publish(staging, path)
        entry = Entry(name, path, fingerprint, False, document)
        # The engine is published; a history that cannot be written only costs a progress line.
        with suppress(ToolkitError):
            history.remember(self._history, name, history.Past(round(seconds, 3), entry.size_bytes))
        say(f"published {path} after {format_duration(seconds)}")
        return entry

    @contextmanager
    def _new_staging(self, name: str, fingerprint: str) -> Iterator[Path]:
        """A folder named after its owner; removed when the block fails, with a full disk explained."""
        staging = self._staging / _staging_name(fingerprint, this_process())
        past = self.last(name)
        try:
            with disk_errors(
                staging,
                f"cannot build engine '{name}'",
                lambda: max(_content_bytes(staging) + 1, past.size_bytes if past else 0),
            ):
                staging.mkdir()
                yield staging
        finally:
            if staging.exists():
                self._remove(staging)

    def _publish(self, staging: Path, path: Path) -> None:
        if path.exists():
            exchange(staging, path)
        else:
            staging.rename(path)
        fsync(self.engines)
        fsync(self._staging)

    def _retire(self, entry: Entry, dry_run: bool) -> bool:
        """Whether nobody builds or uses the engine, so that it could be removed."""
        refused = f"cannot remove engine '{entry.name}'"
        with disk_errors(entry.path, refused), locks.exclusive_now(self._lock_path(entry.fingerprint)) as mine:
            if not mine:
                return False
            return locks.is_unused(entry.path) if dry_run else self._remove(entry.path)

    def _remove(self, path: Path) -> bool:
        """False when it is in use: it stays, in the trash if it was there or in staging, until a later sweep."""
        aside = path if path.parent == self._trash else self._trash / f"{path.name}.{secrets.token_hex(4)}"
        with disk_errors(path, f"cannot remove '{path.name}'"), locks.unused(path) as free:
            if aside != path and (free or path.parent == self._staging):
                path.rename(aside)
            if free:
                shutil.rmtree(aside, ignore_errors=True)
            return free

    def _leftovers(self) -> list[Path]:
        dead = [path for path in _children(self._staging) if _is_ours(path) and self._is_dead(path)]
        return dead + [path for path in _children(self._trash) if _is_ours(path) and locks.is_unused(path)]

    def _is_dead(self, staging: Path) -> bool:
        owner = _staging_owner(staging.name)
        alive = is_alive(owner) if owner else False
        if alive is None:
            # Another container's pid: whoever builds there holds the build lock, and the kernel knows that.
            with locks.exclusive_now(self._locks / f"{staging.name[:_ID_DIGITS]}.lock") as abandoned:
                return abandoned
        return not alive

    def _scan(self) -> Iterator[tuple[Entry | None, Fault | None]]:
        for path in _children(self.engines):
            if path.name.startswith("."):
                continue
            try:
                document = manifest.read(path)
            except ToolkitError as error:
                yield None, Fault(path / manifest.NAME, error.what)
                continue
            if document is None:
                yield None, Fault(path, "has no manifest.json: this is no finished engine")
            else:
                yield Entry(document["name"], path, document["fingerprint"], True, document), None

    def _lock_path(self, fingerprint: str) -> Path:
        return self._locks / f"{fingerprint[:_ID_DIGITS]}.lock"

    def _make_folders(self) -> None:
        with disk_errors(self.engines, "cannot make the engine store"):
            for folder in (self._staging, self._trash, self._locks):
                folder.mkdir(parents=True, exist_ok=True)

    def _waiting(self, name: str, say: Report) -> locks.Waiting:
        def waiting(pid: int | None, seconds: float) -> None:
            who = f"process {pid}" if pid else "another process"
            say(f"{who} is building engine '{name}'; waiting for it ({format_duration(seconds)} so far)")

        return waiting


def _say_nothing(_line: str) -> None:
    return None


def _damaged(name: str, folder: Path, faults: tuple[Fault, ...]) -> ToolkitError:
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    return ToolkitError(
        f"engine '{name}' is damaged: '{faults[0].path.relative_to(folder)}' {faults[0].problem}{more}",
        str(faults[0].path),
        "Build it again with 'coexist build --force'.",
        code="engine_damaged",
        faults=[str(fault) for fault in faults],
    )


def _staging_name(fingerprint: str, owner: ProcessId) -> str:
    parts = (owner.pid, owner.start_time, owner.boot_id[:_BOOT_DIGITS], owner.pid_namespace, secrets.token_hex(4))
    return ".".join([fingerprint[:_ID_DIGITS], *map(str, parts)])


def _staging_owner(name: str) -> ProcessId | None:
    """Who made a staging folder; None: no folder of ours, or an owner of an earlier boot."""
    parts = name.split(".")
    this_boot = boot_id()
    if len(parts) < 6 or not (parts[1] + parts[2] + parts[4]).isdigit() or parts[3] != this_boot[:_BOOT_DIGITS]:
        return None
    return ProcessId(int(parts[1]), int(parts[2]), this_boot, int(parts[4]))


def _children(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []


def _is_ours(path: Path) -> bool:
    try:
        return os.geteuid() in (0, path.stat().st_uid)
    except FileNotFoundError:
        return False  # published or swept since it was listed


def _content_bytes(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file())


def _disk_bytes(folder: Path) -> int:
    size_bytes = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                size_bytes += Path(place, name).lstat().st_blocks * 512
    return size_bytes
