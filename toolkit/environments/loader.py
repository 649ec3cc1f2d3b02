"""The dynamic loader of a machine: where glibc's ld.so looks for a library, and in which order.

Source: ld.so(8); glibc's elf/dl-load.c (_dl_map_object) and sysdeps/generic/ldsodefs.h.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from toolkit.environments import elf, ld_cache, symbols
from toolkit.environments.elf import ElfFile
from toolkit.environments.ld_cache import LdCache
from toolkit.environments.symbols import SymbolTable

Via = Literal["path", "loaded", "rpath", "ld_library_path", "runpath", "cache", "default"]

# CPU flags by level: the x86-64 psABI, micro-architecture levels.
LEVELS = {
    "x86-64-v4": {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"},
    "x86-64-v3": {"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave"},
    "x86-64-v2": {"cx16", "lahf_lm", "popcnt", "sse4_1", "sse4_2", "ssse3"},
}
TRIPLETS = {"x86_64": "x86_64-linux-gnu", "aarch64": "aarch64-linux-gnu"}


@dataclass(frozen=True)
class Loader:
    """One machine's search for libraries. ``hwcaps``: CPU levels, best first. ``lib``: what ``$LIB`` stands for."""

    machine: str
    cache: LdCache = field(default_factory=LdCache)
    default_folders: tuple[Path, ...] = ()
    hwcaps: tuple[str, ...] = ()
    lib: str = "lib64"


def read(*, root: Path = Path("/"), proc: Path = Path("/proc"), machine: str | None = None) -> Loader:
    """The loader of this machine, or of the system unpacked under ``root``."""
    machine = machine or platform.machine()
    folders, lib = _default_folders(root, machine)
    return Loader(machine, ld_cache.read(root / "etc/ld.so.cache"), folders, _levels(proc / "cpuinfo"), lib)


def _default_folders(root: Path, machine: str) -> tuple[tuple[Path, ...], str]:
    """Debian's multi-architecture folders where they are there, else those of Red Hat's and SUSE's glibc."""
    triplet = TRIPLETS.get(machine, f"{machine}-linux-gnu")
    if (root / "lib" / triplet).is_dir() or (root / "usr/lib" / triplet).is_dir():
        names: tuple[str, ...] = (f"lib/{triplet}", f"usr/lib/{triplet}", "lib", "usr/lib")
        return tuple(root / name for name in names), f"lib/{triplet}"
    return (root / "lib64", root / "usr/lib64"), "lib64"


def _levels(cpuinfo: Path) -> tuple[str, ...]:
    try:
        flags = re.search(r"^flags\s*:(.*)$", cpuinfo.read_text(encoding="utf-8", errors="replace"), re.MULTILINE)
    except OSError:
        return ()
    have = set(flags[1].split()) if flags else set()
    levels = list(LEVELS)
    held = [level for at, level in enumerate(levels) if all(LEVELS[lower] <= have for lower in levels[at:])]
    return tuple(held)


@dataclass
class Files:
    """Files already read, each once: the one place of this room that remembers."""

    _elf: dict[Path, ElfFile] = field(default_factory=dict)
    _symbols: dict[Path, SymbolTable] = field(default_factory=dict)
    _identity: dict[Path, tuple[int, int] | None] = field(default_factory=dict)

    def elf(self, path: Path) -> ElfFile:
        """The file as ``elf.read`` gives it."""
        found = self._elf.get(path)
        if found is None:
            found = self._elf[path] = elf.read(path)
        return found

    def symbols(self, path: Path) -> SymbolTable:
        """Its symbols as ``symbols.read`` gives them."""
        found = self._symbols.get(path)
        if found is None:
            found = self._symbols[path] = symbols.read(self.elf(path))
        return found

    def identity(self, path: Path) -> tuple[int, int] | None:
        """Device and inode, by which the loader knows a file again; None: there is no such file."""
        if path not in self._identity:
            self._identity[path] = _identity(path)
        return self._identity[path]

    def tidy(self, path: Path) -> Path:
        """The same file without ``..`` in its name, where that names the same file."""
        short = Path(os.path.normpath(path)) if ".." in path.parts else path
        return short if self.identity(short) == self.identity(path) else path


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except (OSError, ValueError):
        return None
    return status.st_dev, status.st_ino


@dataclass(frozen=True)
class Search:
    """The loader with one process's ``LD_LIBRARY_PATH``, which an empty entry makes the working folder."""

    loader: Loader
    library_path: tuple[Path, ...] = ()

    def in_folders(self, name: str, folders: tuple[Path, ...], files: Files) -> Path | None:
        """The first file of this name in the folders that the loader accepts, their CPU-level folders before them."""
        for folder in folders:
            for place in (*self._levels_of(folder, files), folder):
                if self.accepts(place / name, files):
                    return place / name
        return None

    def _levels_of(self, folder: Path, files: Files) -> Iterator[Path]:
        levels = folder / "glibc-hwcaps"
        if self.loader.hwcaps and files.identity(levels):
            yield from (levels / level for level in self.loader.hwcaps)

    def accepts(self, path: Path, files: Files) -> bool:
        """Whether the loader takes the file; it passes over libraries of other machines."""
        if files.identity(path) is None:
            return False
        file = files.elf(path)
        return file.bits == 64 and file.machine == self.loader.machine

    def in_cache(self, name: str, files: Files) -> Path | None:
        """The file ldconfig recorded for a name, if it is still there."""
        found = self.loader.cache.find(name, self.loader.machine, self.loader.hwcaps)
        return found if found and self.accepts(found, files) else None

    def expand(self, entries: tuple[str, ...], origin: Path) -> tuple[Path, ...]:
        """The folders of RPATH or RUNPATH entries of a file in the folder ``origin``."""
        return tuple(self.expand_one(entry, origin) for entry in entries)

    def expand_one(self, entry: str, origin: Path) -> Path:
        """One entry with ``$ORIGIN``, ``$LIB`` and ``$PLATFORM`` put in."""
        values = {"ORIGIN": str(origin), "LIB": self.loader.lib, "PLATFORM": self.loader.machine}
        return Path(_TOKEN.sub(lambda match: values[match[1] or match[2]], entry) or ".")


_TOKEN = re.compile(r"\$(?:\{(ORIGIN|LIB|PLATFORM)\}|(ORIGIN|LIB|PLATFORM)(?![A-Za-z0-9_]))")


def library_path(text: str | None) -> tuple[Path, ...]:
    """The folders of an ``LD_LIBRARY_PATH``: split at colons and semicolons; an empty entry is the working folder."""
    return tuple(Path(entry or ".") for entry in re.split("[:;]", text)) if text else ()
