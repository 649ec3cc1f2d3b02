"""What can be seen from outside of compiles in an instance: new files, compilers below it, its log, its own counter.

Nothing here runs by itself: a look is taken when a probe is, and costs one stat for each folder that is known.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import aiohttp

from toolkit import processes
from toolkit.facts import program_logs
from toolkit.processes import Identity
from toolkit.runtimes.environment import COMPILE_FOLDERS
from toolkit.supervise.leftovers import is_lock
from toolkit.supervise.logs import LogView, NewLines
from toolkit.supervise.outcome import COMPILERS
from toolkit.supervise.process import Tree
from toolkit.warm.client import Client, RequestFailedError
from toolkit.warm.compiles import COUNTER, Seen
from toolkit.warm.model import Target
from toolkit.warm.preload import compile_events, compiled_keys

# A cache that is larger than this is not looked at any more, and said to be unobservable.
MAX_FOLDERS, MAX_KEYS = 4000, 40000
# A folder that changed this recently may change again within the same tick of the file system's clock.
_SETTLED_NS = 50_000_000
_SHOWN_CHARS = 120
_IN_PROCESS = "nvrtc"  # compiles inside the process and leaves no file, no child and no line


@dataclass
class CacheFolder:
    """The keys of one compiler's cache, each counted once however many files it has."""

    path: Path
    newest: str | None = None
    _known: dict[str, int] = field(default_factory=dict)
    _below: dict[str, list[str]] = field(default_factory=dict)
    _keys: set[str] = field(default_factory=set)

    def count(self) -> int | None:
        """Keys ever seen; None: there are too many to look at."""
        waiting = [str(self.path)]
        for looked in range(MAX_FOLDERS + 1):
            if not waiting:
                return len(self._keys)
            if looked == MAX_FOLDERS or len(self._keys) > MAX_KEYS:
                break
            waiting.extend(self._look(waiting.pop()))
        return None

    def _look(self, folder: str) -> list[str]:
        """The folders in it; what it holds is read only when something came or went."""
        try:
            changed_ns = os.stat(folder).st_mtime_ns  # noqa: PTH116 (thousands of them)
            if self._known.get(folder) != changed_ns:
                self._below[folder] = self._read(folder)
        except OSError:
            return []
        settled = time.time_ns() - changed_ns > _SETTLED_NS
        self._known[folder] = changed_ns if settled else -1
        return self._below[folder]

    def _read(self, folder: str) -> list[str]:
        with os.scandir(folder) as entries:
            found = [(entry.name, entry.path, entry.is_dir(follow_symlinks=False)) for entry in entries]
        for name, path, is_folder in found:
            if not is_folder and _is_artefact(name):
                self._note(path)
        return [path for name, path, is_folder in found if is_folder and name not in ("__pycache__", "locks")]

    def _note(self, path: str) -> None:
        key = os.path.splitext(os.path.relpath(path, self.path))[0]  # noqa: PTH122 (thousands of them)
        if key not in self._keys:
            self._keys.add(key)
            self.newest = key


def _is_artefact(name: str) -> bool:
    """Not a lock, not half-written, and not Triton's list of a group's files."""
    aside = name.startswith((".", "__grp__", "tmp")) or name.endswith((".tmp", ".part", ".log"))
    return not aside and not is_lock(Path(name))


@dataclass
class Compilers:
    """Compilers seen below a tree. One that came and went between two looks was not seen."""

    tree: Tree
    newest: str | None = None
    running: str | None = None
    _seen: set[Identity] = field(default_factory=set)

    def count(self) -> int:
        """Ever seen, this look included; ``running``: the name of one that was there at this look."""
        below = (pid for root in (self.tree.pid, *self.tree.beside) for pid in processes.descendants(root))
        found = [each for pid in below if (each := processes.stat(pid)) and each.name in COMPILERS and not each.dead]
        self.running = found[0].name if found else None
        for each in found:
            if each.identity not in self._seen:
                self._seen.add(each.identity)
                self.newest = each.name
        return len(self._seen)


@dataclass
class LogLines:
    """Lines of a log that tell of compiling, its ranks' files included."""

    log: LogView
    newest: str | None = None
    _count: int = 0
    _lines: NewLines = field(init=False)

    def __post_init__(self) -> None:
        self._lines = NewLines(self.log)

    def count(self) -> int:
        """Since the attempt began; only what was written since the last look is read."""
        for line in self._lines.read():
            if told := program_logs.compiling(line):
                self._count += 1
                self.newest = told[:_SHOWN_CHARS]
        return self._count


@dataclass
class CompileWatch:
    """One attempt, from all sides. ``look`` gives the counts; ``glance`` only catches compilers while they run."""

    target: Target
    http: aiohttp.ClientSession
    folders: Mapping[str, CacheFolder | None]
    compilers: Compilers
    lines: LogLines
    on_gpu: bool
    _known_keys: tuple[str, ...] = ()
    _counter_newest: str | None = None
    _last_counter: int | None = None

    @classmethod
    def of(
        cls, target: Target, http: aiohttp.ClientSession, tree: Tree, log: LogView,
        *, env: Mapping[str, str], cache_dir: Path | None, on_gpu: bool,
    ) -> CompileWatch:  # fmt: skip
        """The watch over a process that was started with ``env``, whose own caches are below ``cache_dir``."""
        return cls(target, http, folders(env, cache_dir), Compilers(tree), LogLines(log), on_gpu)

    async def look(self) -> Seen:
        """Everything that is seen now."""
        counted = {COUNTER: await self._counter()} if self.target.probes.stage is not None else {}
        seen = await asyncio.to_thread(self._outside)
        named = {COUNTER: self._counter_newest} if self._counter_newest else {}
        return replace(seen, counts={**counted, **seen.counts}, newest={**named, **seen.newest})

    def glance(self) -> None:
        """Notes the compilers that run now."""
        self.compilers.count()

    def _outside(self) -> Seen:
        sources = {"compilers": self.compilers, "log": self.lines, **self.folders}
        counts = {name: None if source is None else source.count() for name, source in sources.items()}
        newest = {name: source.newest for name, source in sources.items() if source and source.newest}
        unseen = {_IN_PROCESS: None} if self.on_gpu else {}
        return Seen({**counts, **unseen}, newest, self.compilers.running)

    async def _counter(self) -> int | None:
        """What the server counts itself; None: it does not answer."""
        try:
            counter = await compile_events(Client(self.target, self.http))
            await self._name_keys(counter)
        except RequestFailedError:
            return None
        return counter

    async def _name_keys(self, counter: int | None) -> None:
        """The last key that its libraries' own caches have gained; asked only when the counter moved."""
        if not counter or counter == self._last_counter:
            return
        self._last_counter = counter
        keys = await compiled_keys(Client(self.target, self.http))
        new = [key for key in keys if key not in self._known_keys]
        self._known_keys, self._counter_newest = keys, new[-1] if new else self._counter_newest


def folders(env: Mapping[str, str], cache_dir: Path | None) -> dict[str, CacheFolder | None]:
    """The caches of compilers that this environment names; None: not the instance's own, so others write there too."""
    return {
        channel: CacheFolder(Path(env[name]) / below) if _is_own(env.get(name), cache_dir) else None
        for name, (channel, below) in COMPILE_FOLDERS.items()
        if name in env
    }


def _is_own(folder: str | None, cache_dir: Path | None) -> bool:
    return bool(folder) and cache_dir is not None and Path(folder or "").is_relative_to(cache_dir)
