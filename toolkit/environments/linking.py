"""What a process sees when it loads a library: every needed file, and every symbol that nobody exports.

Source: glibc's elf/dl-load.c, dl-deps.c, dl-version.c and dl-lookup.c, acted out on files alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from toolkit.environments import evidence, symbols
from toolkit.environments.elf import ElfFile
from toolkit.environments.evidence import Evidence
from toolkit.environments.loader import Files, Search, Via
from toolkit.environments.symbols import SymbolTable, Undefined

MAX_EVIDENCE = 64  # symbols of one file that are weighed; a mismatch shows in the first


@dataclass(frozen=True)
class Library:
    """One needed library: where it was found, and how.

    ``path`` None: nowhere. ``passed_over``: the other file that the asking file's own RPATH or RUNPATH names, which
    something earlier in the search kept out.
    """

    name: str
    asked_by: Path
    path: Path | None = None
    via: Via | None = None
    passed_over: Path | None = None


@dataclass(frozen=True)
class MissingVersion:
    """A library that is there, but older than what the asking file was linked against."""

    asked_by: Path
    library: Path
    version: str


@dataclass(frozen=True)
class Unresolved:
    """A symbol some file cannot do without and nothing loaded exports.

    ``library``: the file its version was linked against. ``evidence`` None: not weighed.
    """

    asked_by: Path
    symbol: str
    version: str | None
    evidence: Evidence | None = None
    library: str | None = None


@dataclass(frozen=True)
class Resolution:
    """One file as a process would load it.

    ``libraries``: what it and the libraries it brings in need, in the order they are searched. ``undecided``: how many
    more symbols nobody exports that may come from the missing libraries. ``errors``: files that could not be read.
    """

    file: Path
    libraries: tuple[Library, ...] = ()
    missing_versions: tuple[MissingVersion, ...] = ()
    unresolved: tuple[Unresolved, ...] = ()
    undecided: int = 0
    errors: tuple[tuple[Path, str], ...] = ()

    @property
    def missing(self) -> tuple[Library, ...]:
        """Libraries found nowhere."""
        return tuple(library for library in self.libraries if library.path is None)

    @property
    def shadowed(self) -> tuple[Library, ...]:
        """Libraries that are not the ones the asking file names itself."""
        return tuple(library for library in self.libraries if library.passed_over)

    @property
    def loads(self) -> bool:
        """Whether the loader would accept the file."""
        return not (self.missing or self.missing_versions or self.unresolved or self.errors or self.undecided)


@dataclass(eq=False)
class Mapped:
    """A file in the process; ``parent`` asked for it first."""

    path: Path
    file: ElfFile
    parent: Mapped | None
    via: Via
    needs: list[Mapped] | None = None


@dataclass(eq=False)
class Process:
    """The libraries of one process, in load order. ``everywhere``: those whose symbols every file sees."""

    search: Search
    files: Files
    maps: list[Mapped] = field(default_factory=list)
    everywhere: list[Mapped] = field(default_factory=list)
    by_name: dict[str, Mapped] = field(default_factory=dict)
    by_identity: dict[tuple[int, int], Mapped] = field(default_factory=dict)
    assume_python: bool = False

    def copy(self) -> Process:
        """A process in the same state, which loads on its own from here."""
        return Process(
            self.search,
            self.files,
            list(self.maps),
            list(self.everywhere),
            dict(self.by_name),
            dict(self.by_identity),
            self.assume_python,
        )

    def load(self, path: Path, *, public: bool = False) -> Resolution:
        """Loads a file as ``dlopen`` does (``public``: RTLD_GLOBAL) and says what the loader finds.

        A file that the loader refuses stays in the process all the same, so that later files can be judged.
        """
        before = set(map(id, self.maps))
        libraries: list[Library] = []
        root = self._map(path, None, "path")
        scope = list(self._closure(root, libraries))
        if public:
            self.everywhere += [mapped for mapped in scope if mapped not in self.everywhere]
        new = [mapped for mapped in scope if id(mapped) not in before]
        return self._check(root, libraries, new, [*self.everywhere, *scope])

    def find(self, name: str) -> Library:
        """The library that ``dlopen`` of a bare name would give the program now."""
        asking = self.everywhere[0] if self.everywhere else Mapped(Path("/"), ElfFile(Path("/")), None, "path")
        path, via, _ = self._find(name, asking)
        return Library(name, asking.path, path, via if path else None)

    def _closure(self, root: Mapped, libraries: list[Library]) -> Iterator[Mapped]:
        """The file and all it needs, breadth first, mapped as it goes."""
        order, seen = [root], {id(root)}
        for mapped in order:
            yield mapped
            if mapped.needs is None:
                mapped.needs = list(self._resolve_needs(mapped, libraries))
            fresh = [need for need in mapped.needs if id(need) not in seen]
            seen.update(map(id, fresh))
            order += dict.fromkeys(fresh)

    def _resolve_needs(self, asking: Mapped, libraries: list[Library]) -> Iterator[Mapped]:
        for name in asking.file.needed:
            path, via, loaded = self._find(name, asking)
            if path is None:
                libraries.append(Library(name, asking.path))
                continue
            mapped = loaded or self._map(path, asking, via)
            self.by_name.setdefault(name, mapped)
            taken, other = self.files.tidy(mapped.path), self._passed_over(name, asking, mapped)
            libraries.append(Library(name, asking.path, taken, via, other))
            yield mapped

    def _map(self, path: Path, parent: Mapped | None, via: Via) -> Mapped:
        identity = self.files.identity(path)
        known = self.by_identity.get(identity) if identity else None
        if known:
            return known
        mapped = Mapped(path, self.files.elf(path), parent, via)
        self.maps.append(mapped)
        if identity:
            self.by_identity[identity] = mapped
        if mapped.file.soname:
            self.by_name.setdefault(mapped.file.soname, mapped)
        return mapped

    def _find(self, name: str, asking: Mapped) -> tuple[Path | None, Via, Mapped | None]:
        """Where a needed name is found; the third is set when it is in the process already."""
        if "/" in name:
            return self.search.expand_one(name, asking.path.parent), "path", None
        loaded = self.by_name.get(name)
        if loaded:
            return loaded.path, "loaded", loaded
        for via, folders in self._folders(asking):
            found = self.search.in_folders(name, folders, self.files)
            if found:
                return found, via, None
        if asking.file.default_folders:
            return *self._in_system(name), None
        return None, "default", None

    def _folders(self, asking: Mapped) -> Iterator[tuple[Via, tuple[Path, ...]]]:
        """The folders searched before the system's: RPATH of the whole chain only where the file has no RUNPATH."""
        if asking.file.runpath is None:
            yield from (("rpath", self._own_folders(link)) for link in self._chain(asking) if not link.file.runpath)
        yield "ld_library_path", self.search.library_path
        if asking.file.runpath is not None:
            yield "runpath", self._own_folders(asking)

    def _chain(self, asking: Mapped) -> Iterator[Mapped]:
        """The file, the one that asked for it, and so on; the program itself last."""
        link: Mapped | None = asking
        last = asking
        while link:
            yield link
            last, link = link, link.parent
        if self.everywhere and last is not self.everywhere[0]:
            yield self.everywhere[0]

    def _own_folders(self, mapped: Mapped) -> tuple[Path, ...]:
        entries = mapped.file.rpath if mapped.file.runpath is None else mapped.file.runpath
        return self.search.expand(entries or (), mapped.path.parent)

    def _in_system(self, name: str) -> tuple[Path | None, Via]:
        found = self.search.in_cache(name, self.files)
        if found:
            return found, "cache"
        return self.search.in_folders(name, self.search.loader.default_folders, self.files), "default"

    def _passed_over(self, name: str, asking: Mapped, taken: Mapped) -> Path | None:
        own = self.search.in_folders(name, self._own_folders(asking), self.files)
        if own is None or self.files.identity(own) == self.files.identity(taken.path):
            return None
        return self.files.tidy(own)

    def _check(self, root: Mapped, libraries: list[Library], new: list[Mapped], scope: list[Mapped]) -> Resolution:
        errors = tuple((m.path, error) for m in new if (error := self._error(m.file)))
        readable = [m for m in new if not self._error(m.file)]
        lost = {library.name for library in libraries if library.path is None}
        unresolved = [u for m in readable for u in self._unresolved(m, scope)]
        kept = [u for u in unresolved if not _may_come_from(lost, u)]
        return Resolution(
            root.path,
            tuple(libraries),
            tuple(missing for m in readable for missing in self._missing_versions(m, scope)),
            tuple(kept),
            len(unresolved) - len(kept),
            errors,
        )

    def _error(self, file: ElfFile) -> str | None:
        foreign = file.machine not in {None, self.search.loader.machine}
        return f"it is for another machine: {file.machine}" if foreign else file.error

    def _missing_versions(self, mapped: Mapped, scope: list[Mapped]) -> Iterator[MissingVersion]:
        for needed in dict.fromkeys(self.files.symbols(mapped.path).needed.values()):
            library = self.by_name.get(needed.library)
            if library is None or library not in scope or needed.weak:
                continue
            defined = self.files.symbols(library.path).defined
            if defined and needed.version not in defined.values():
                yield MissingVersion(mapped.path, library.path, needed.version)

    def _unresolved(self, mapped: Mapped, scope: list[Mapped]) -> list[Unresolved]:
        tables = [self.files.symbols(path) for path in dict.fromkeys(m.path for m in scope)]
        suspects = [
            s for s in self.files.symbols(mapped.path).undefined() if not s.weak and not self._is_there(s, tables)
        ]
        bound = symbols.relocated(mapped.file) if suspects else frozenset()
        guilty = [suspect for suspect in suspects if suspect.number in bound]
        weighed = [(s, weigh(s, tables)) for s in guilty[:MAX_EVIDENCE]]
        rest = [(s, None) for s in guilty[MAX_EVIDENCE:]]
        return [Unresolved(mapped.path, s.name, s.version, proof, s.library) for s, proof in (*weighed, *rest)]

    def _is_there(self, symbol: Undefined, tables: list[SymbolTable]) -> bool:
        if self.assume_python and evidence.owner_of(symbol.name) == "python":
            return True
        return any(table.exports(symbol.name, symbol.version) for table in tables)


def _may_come_from(lost: set[str], symbol: Unresolved) -> bool:
    """Whether a missing library explains the symbol: it was linked against it, or nothing loaded knows its name."""
    absent = symbol.evidence is None or symbol.evidence.kind == "absent"
    return symbol.library in lost or (bool(lost) and absent)


def weigh(symbol: Undefined, tables: Iterable[SymbolTable]) -> Evidence:
    """The evidence of a missing symbol, given the tables of everything loaded."""
    prefixes = evidence.same_name_prefixes(symbol.name)
    others: dict[str, None] = {}
    for table in tables:
        if table.exports(symbol.name):
            others[symbol.name] = None
        for prefix in prefixes:
            found = table.starting_with(prefix)
            others.update(dict.fromkeys(name for name in found if evidence.is_same_name(prefix, name)))
    return evidence.weigh(symbol.name, symbol.version, others)


def start(
    search: Search, files: Files, executable: Path | None, preload: Iterable[Path] = ()
) -> tuple[Process, Resolution | None]:
    """A process that runs a program, with its ``LD_PRELOAD``, and how the program itself loads.

    ``executable`` None: no interpreter is known; then Python's own symbols count as there.
    """
    process = Process(search, files, assume_python=executable is None)
    # The kernel names the program by its real path, and $ORIGIN follows that.
    resolution = process.load(executable.resolve(), public=True) if executable else None
    for path in preload:
        process.load(path, public=True)
    return process, resolution
