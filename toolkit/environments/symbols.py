"""Dynamic symbols: what a file asks of others and what it exports, versions included."""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from toolkit.environments.elf import DamagedError, ElfFile, FileReader

DT_HASH, DT_SYMTAB, DT_RELA, DT_RELASZ, DT_STRTAB, DT_STRSZ = 4, 6, 7, 8, 5, 10
DT_PLTRELSZ, DT_JMPREL = 2, 23
DT_GNU_HASH, DT_VERSYM = 0x6FFFFEF5, 0x6FFFFFF0
DT_VERDEF, DT_VERDEFNUM, DT_VERNEED, DT_VERNEEDNUM = 0x6FFFFFFC, 0x6FFFFFFD, 0x6FFFFFFE, 0x6FFFFFFF
STB_LOCAL, STB_WEAK = 0, 2
VER_HIDDEN, VER_BASE = 0x8000, 1
VER_WEAK = 2
SYMBOL = struct.Struct("<IBBHQQ")
RELOCATION = struct.Struct("<QQq")
MAX_VERSIONS = 65536


class Undefined(NamedTuple):
    """A symbol that some other file must export; ``library``: the file its version was linked against."""

    name: str
    version: str | None
    library: str | None
    weak: bool
    number: int


class NeededVersion(NamedTuple):
    """A version that a library must define; a weak one may be missing."""

    library: str
    version: str
    weak: bool


@dataclass(frozen=True, eq=False)
class SymbolTable:
    """The dynamic symbols of one file; of a damaged one ``error`` says why it is empty.

    ``needed`` and ``defined``: versions by the number that symbols carry.
    """

    file: ElfFile
    error: str | None = None
    symbols: bytes = b""
    strings: bytes = b""
    version_indices: bytes = b""
    gnu_hash: bytes = b""
    sysv_hash: bytes = b""
    count: int = 0
    needed: Mapping[int, NeededVersion] = field(default_factory=dict)
    defined: Mapping[int, str] = field(default_factory=dict)

    def undefined(self) -> tuple[Undefined, ...]:
        """The symbols that other files must export, in table order."""
        return tuple(self._undefined())

    def _undefined(self) -> Iterator[Undefined]:
        rows = SYMBOL.iter_unpack(self.symbols[: self.count * SYMBOL.size])
        for index, (name, info, _, section, _, _) in enumerate(rows):
            binding = info >> 4
            if section == 0 and name and binding != STB_LOCAL:
                version = self.needed.get(self._version_index(index) & ~VER_HIDDEN)
                yield Undefined(
                    self._text(name),
                    version.version if version else None,
                    version.library if version else None,
                    binding == STB_WEAK,
                    index,
                )

    def exports(self, name: str, version: str | None = None) -> bool:
        """Whether a symbol of this name, in this version when one is asked for, can be bound here."""
        return any(self._bindable(index, version) for index in self._find(name))

    def starting_with(self, prefix: str, limit: int = 32) -> tuple[str, ...]:
        """Exported names that begin with a text, sorted; at most ``limit``."""
        wanted = prefix.encode("utf-8", "surrogateescape")
        found: set[str] = set()
        at = self.strings.find(wanted)
        while at >= 0 and len(found) < limit:
            # A linker may let a short name be the tail of a longer one; a prefix counts only at a name's start.
            if at == 0 or self.strings[at - 1] == 0:
                name = self._text(at)
                if self.exports(name):
                    found.add(name)
            at = self.strings.find(wanted, at + 1)
        return tuple(sorted(found))

    def value(self, name: str) -> tuple[int, int] | None:
        """Address and size in bytes of an exported symbol."""
        for index in self._find(name):
            *_, value, size = SYMBOL.unpack_from(self.symbols, index * SYMBOL.size)
            return value, size
        return None

    def _text(self, offset: int) -> str:
        end = self.strings.find(b"\0", offset)
        return self.strings[offset : end if end >= 0 else None].decode("utf-8", "surrogateescape")

    def _version_index(self, index: int) -> int:
        at = index * 2
        return int.from_bytes(self.version_indices[at : at + 2], "little")

    def _bindable(self, index: int, version: str | None) -> bool:
        """The loader's rule: see check_match in glibc's elf/dl-lookup.c."""
        if not self.version_indices:
            return True
        found = self._version_index(index)
        hidden, number = bool(found & VER_HIDDEN), found & ~VER_HIDDEN
        if version is None:
            return not hidden
        name = self.defined.get(number)
        return name == version or (not hidden and number <= VER_BASE)

    def _find(self, name: str) -> Iterator[int]:
        wanted = name.encode("utf-8", "surrogateescape")
        if self.gnu_hash:
            yield from self._find_gnu(wanted)
        elif self.sysv_hash:
            yield from self._find_sysv(wanted)

    def _is(self, index: int, wanted: bytes) -> bool:
        if (index + 1) * SYMBOL.size > len(self.symbols):
            return False
        offset, _, _, section, _, _ = SYMBOL.unpack_from(self.symbols, index * SYMBOL.size)
        return bool(section) and self.strings[offset : offset + len(wanted) + 1] == wanted + b"\0"

    def _find_gnu(self, wanted: bytes) -> Iterator[int]:
        buckets, first, words, shift = struct.unpack_from("<IIII", self.gnu_hash)
        value = gnu_hash(wanted)
        (word,) = struct.unpack_from("<Q", self.gnu_hash, 16 + 8 * ((value // 64) % words))
        if not (word >> (value % 64)) & (word >> ((value >> shift) % 64)) & 1:
            return
        chains = 16 + 8 * words + 4 * buckets
        (index,) = struct.unpack_from("<I", self.gnu_hash, 16 + 8 * words + 4 * (value % buckets))
        last = first + (len(self.gnu_hash) - chains) // 4
        while first <= index < last:
            (entry,) = struct.unpack_from("<I", self.gnu_hash, chains + 4 * (index - first))
            if entry | 1 == value | 1 and self._is(index, wanted):
                yield index
            if entry & 1:
                return
            index += 1

    def _find_sysv(self, wanted: bytes) -> Iterator[int]:
        buckets, count = struct.unpack_from("<II", self.sysv_hash)
        (index,) = struct.unpack_from("<I", self.sysv_hash, 8 + 4 * (sysv_hash(wanted) % buckets))
        for _ in range(count):  # a damaged chain may be a circle
            if not 0 < index < count:
                return
            if self._is(index, wanted):
                yield index
            (index,) = struct.unpack_from("<I", self.sysv_hash, 8 + 4 * (buckets + index))


@functools.lru_cache(maxsize=65536)
def gnu_hash(name: bytes) -> int:
    """The hash of DT_GNU_HASH tables."""
    value = 5381
    for byte in name:
        value = (value * 33 + byte) & 0xFFFFFFFF
    return value


def sysv_hash(name: bytes) -> int:
    """The hash of DT_HASH tables (System V ABI)."""
    value = 0
    for byte in name:
        value = (value << 4) + byte
        value = (value ^ (value >> 24 & 0xF0)) & 0x0FFFFFFF
    return value


def read(file: ElfFile) -> SymbolTable:
    """The dynamic symbols of a file; of a damaged one an empty table with ``error``."""
    if file.error:
        return SymbolTable(file, file.error)
    try:
        with FileReader(file.path) as reader:
            return _read(file, reader)
    except OSError as error:
        return SymbolTable(file, error.strerror or "unreadable")
    except (DamagedError, struct.error) as error:
        return SymbolTable(file, str(error))


def _read(file: ElfFile, reader: FileReader) -> SymbolTable:
    strings = _strings(file, reader)
    if not strings:
        return SymbolTable(file)
    gnu, gnu_count, first = _read_gnu_hash(file, reader)
    sysv, sysv_count = _read_sysv_hash(file, reader)
    total = max(gnu_count, sysv_count) or _count_by_place(file)
    symbols = _table(file, reader, DT_SYMTAB, total * SYMBOL.size)
    needed = _needed_versions(file, reader, strings) if file.tag(DT_VERNEED) is not None else {}
    defined = _defined_versions(file, reader, strings) if file.tag(DT_VERDEF) is not None else {}
    return SymbolTable(
        file,
        symbols=symbols,
        strings=strings,
        version_indices=_table(file, reader, DT_VERSYM, total * 2),
        gnu_hash=gnu,
        sysv_hash=sysv,
        count=first or total,
        needed=needed,
        defined=defined,
    )


def _strings(file: ElfFile, reader: FileReader) -> bytes:
    return _table(file, reader, DT_STRTAB, file.tag(DT_STRSZ) or 0)


def _table(file: ElfFile, reader: FileReader, tag: int, size_bytes: int) -> bytes:
    address = file.tag(tag)
    return b"" if address is None or not size_bytes else reader.at(file.offset(address), size_bytes)


def _count_by_place(file: ElfFile) -> int:
    """Symbols of a file whose hash table is empty: linkers put the strings right behind the symbols."""
    symbols, strings = file.tag(DT_SYMTAB), file.tag(DT_STRTAB)
    return 0 if symbols is None or strings is None or strings < symbols else (strings - symbols) // SYMBOL.size


def _read_sysv_hash(file: ElfFile, reader: FileReader) -> tuple[bytes, int]:
    address = file.tag(DT_HASH)
    if address is None:
        return b"", 0
    offset = file.offset(address)
    buckets, count = struct.unpack("<II", reader.at(offset, 8))
    if not buckets:
        return b"", count
    return reader.at(offset, 8 + 4 * (buckets + count)), count


def _read_gnu_hash(file: ElfFile, reader: FileReader) -> tuple[bytes, int, int]:
    """The table, the number of symbols it implies, and the first hashed one; all before that one are not exported."""
    address = file.tag(DT_GNU_HASH)
    if address is None:
        return b"", 0, 0
    offset = file.offset(address)
    buckets, first, words, _ = struct.unpack("<IIII", reader.at(offset, 16))
    if not buckets or not words:
        return b"", 0, 0
    fixed = 16 + 8 * words + 4 * buckets
    head = reader.at(offset, fixed)
    last = max(struct.unpack_from(f"<{buckets}I", head, 16 + 8 * words))
    if last < first:
        return head, 0, 0
    chains = _chains(reader, offset + fixed, last - first)
    return head + chains, first + len(chains) // 4, first


def _chains(reader: FileReader, offset: int, last: int) -> bytes:
    """All chain values: up to the end of the chain that begins last."""
    data = reader.at(offset, 4 * (last + 1))
    step, end = 256, offset + 4 * (last + 1)
    while not data[-4] & 1:
        more = reader.at(end, max(0, min(step, (reader.size_bytes - end) // 4 * 4)))
        if not more:
            raise DamagedError("the hash table of symbols has no end")
        stop = next((at + 4 for at in range(0, len(more), 4) if more[at] & 1), len(more))
        data += more[:stop]
        end += len(more)
    return data


def _needed_versions(file: ElfFile, reader: FileReader, strings: bytes) -> dict[int, NeededVersion]:
    """DT_VERNEED: by the number that symbols carry."""
    text = _texts(strings)
    found: dict[int, NeededVersion] = {}
    for at, _, count, name, first, _ in _linked(file, reader, (DT_VERNEED, DT_VERNEEDNUM), "<HHIII"):
        place = at + first
        for _ in range(min(count, MAX_VERSIONS)):
            _, flags, number, version, following = struct.unpack("<IHHII", reader.at(place, 16))
            found[number] = NeededVersion(text(name), text(version), bool(flags & VER_WEAK))
            if not following:
                break
            place += following
    return found


def _defined_versions(file: ElfFile, reader: FileReader, strings: bytes) -> dict[int, str]:
    """DT_VERDEF: by the number that symbols carry."""
    text = _texts(strings)
    found: dict[int, str] = {}
    for at, _, flags, number, count, _, first, _ in _linked(file, reader, (DT_VERDEF, DT_VERDEFNUM), "<HHHHIII"):
        if count and not flags & VER_BASE:
            name, _ = struct.unpack("<II", reader.at(at + first, 8))
            found[number] = text(name)
    return found


def _linked(file: ElfFile, reader: FileReader, tags: tuple[int, int], layout: str) -> Iterator[tuple[int, ...]]:
    """Place and fields of each record of a list (tags of its start and count); the last field leads to the next."""
    at = file.offset(file.tag(tags[0]) or 0)
    for _ in range(min(file.tag(tags[1]) or 0, MAX_VERSIONS)):
        fields = struct.unpack(layout, reader.at(at, struct.calcsize(layout)))
        yield at, *fields
        if not fields[-1]:
            return
        at += fields[-1]


def _texts(strings: bytes) -> Callable[[int], str]:
    def text(offset: int) -> str:
        end = strings.find(b"\0", offset)
        if end < 0:
            raise DamagedError(f"no text at {offset:#x} of the string table")
        return strings[offset:end].decode("utf-8", "surrogateescape")

    return text


def relocated(file: ElfFile) -> frozenset[int]:
    """Numbers of the symbols that some relocation binds; an undefined symbol outside them is never looked up."""
    try:
        with FileReader(file.path) as reader:
            tables = ((DT_RELA, DT_RELASZ), (DT_JMPREL, DT_PLTRELSZ))
            parts = [_table(file, reader, tag, file.tag(size) or 0) for tag, size in tables]
            return frozenset(info >> 32 for part in parts for _, info, _ in RELOCATION.iter_unpack(part))
    except (OSError, DamagedError, struct.error):
        return frozenset()
