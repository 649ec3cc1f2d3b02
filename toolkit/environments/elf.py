"""ELF files, read as the dynamic loader reads them: by program headers and the dynamic section, never as a whole.

Own parsing for speed and for damage: reading the dynamic sections of 480 libraries took pyelftools 0.56 s of processor
time, their symbols over 4 s, while ``import torch`` in the same environment takes 1.2 s. The tests hold this reader
against pyelftools. Parts are read with pread, not mapped: a file that shrinks meanwhile gives an error, not SIGBUS.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Literal, NamedTuple

MACHINES = {3: "i386", 21: "ppc64", 22: "s390", 40: "arm", 62: "x86_64", 183: "aarch64", 243: "riscv"}
KINDS: dict[int, Literal["executable", "shared"]] = {2: "executable", 3: "shared"}
PT_LOAD, PT_DYNAMIC, PT_INTERP = 1, 2, 3
DT_NEEDED, DT_STRTAB, DT_SONAME, DT_RPATH, DT_RUNPATH = 1, 5, 14, 15, 29
DT_FLAGS_1, DF_1_NODEFLIB = 0x6FFFFFFB, 0x800
MAX_PART_BYTES = 256 << 20  # the largest part known, the string table of a CUDA libtorch, has tens of MiB
MAX_TEXT_BYTES = 16 << 10
MAX_HEADERS = 4096
MAX_DYNAMIC_ENTRIES = 16384


class DamagedError(Exception):
    """The file is not what its own headers say; never leaves this room."""


class Part(NamedTuple):
    """A segment in memory and in the file."""

    address: int
    offset: int
    size_bytes: int


class Section(NamedTuple):
    name: str
    offset: int
    size_bytes: int


@dataclass(frozen=True)
class ElfFile:
    """What the loader reads of a file before it maps it.

    ``error``: why the rest is missing; None: it is complete. ``rpath``, ``runpath``: entries as written, ``$ORIGIN``
    included; None: the tag is absent. ``dynamic``: the first value of each tag. ``loads``: parts that are mapped.
    """

    path: Path
    size_bytes: int = 0
    error: str | None = None
    machine: str | None = None
    bits: int | None = None
    kind: Literal["executable", "shared"] | None = None
    soname: str | None = None
    needed: tuple[str, ...] = ()
    rpath: tuple[str, ...] | None = None
    runpath: tuple[str, ...] | None = None
    default_folders: bool = True
    interpreter: str | None = None
    dynamic: tuple[tuple[int, int], ...] = ()
    loads: tuple[Part, ...] = ()

    def tag(self, tag: int) -> int | None:
        """The first value of a dynamic tag."""
        return next((value for name, value in self.dynamic if name == tag), None)

    def offset(self, address: int) -> int:
        """Where in the file the byte at a virtual address lies.

        Raises: DamagedError when no mapped part holds it.
        """
        for part in self.loads:
            if part.address <= address < part.address + part.size_bytes:
                return address - part.address + part.offset
        raise DamagedError(f"address {address:#x} is in no mapped part")


class FileReader:
    """Bounded reads at offsets of one open file."""

    def __init__(self, path: Path) -> None:
        # O_NONBLOCK: a FIFO with a library's name must not hang the check.
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        self.size_bytes = os.fstat(self._descriptor).st_size

    def __enter__(self) -> FileReader:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: object, trace: TracebackType | None) -> None:
        os.close(self._descriptor)

    def at(self, offset: int, size_bytes: int) -> bytes:
        """Exactly these bytes.

        Raises: DamagedError when the file ends before, or the part is absurdly large.
        """
        if size_bytes > MAX_PART_BYTES or offset < 0 or size_bytes < 0 or offset + size_bytes > self.size_bytes:
            raise DamagedError(f"{size_bytes} bytes at {offset:#x} are not in a file of {self.size_bytes}")
        data = os.pread(self._descriptor, size_bytes, offset)
        if len(data) != size_bytes:
            raise DamagedError(f"the file ended at {offset + len(data):#x} while it was read")
        return data

    def text(self, offset: int) -> str:
        """The NUL-terminated text at an offset."""
        for limit in (256, MAX_TEXT_BYTES):
            data = self.at(offset, max(0, min(limit, self.size_bytes - offset)))
            end = data.find(b"\0")
            if end >= 0:
                return data[:end].decode("utf-8", "surrogateescape")
        raise DamagedError(f"the text at {offset:#x} has no end")


def read(path: Path) -> ElfFile:
    """The loader's view of a file; of a damaged, foreign or unreadable one, what could be read and ``error``."""
    try:
        with FileReader(path) as reader:
            return _read(ElfFile(path, reader.size_bytes), reader)
    except OSError as error:
        return ElfFile(path, error=error.strerror or "unreadable")


def guarded(file: ElfFile, step: Callable[[ElfFile], ElfFile]) -> ElfFile:
    """The file after a step, or as it was with ``error`` when the step met damage."""
    try:
        return step(file)
    except (DamagedError, struct.error) as error:
        return replace(file, error=str(error))


def _read(file: ElfFile, reader: FileReader) -> ElfFile:
    identified = guarded(file, lambda f: _identify(f, reader))
    if identified.error:
        return identified
    return guarded(identified, lambda f: _read_segments(f, reader))


def _identify(file: ElfFile, reader: FileReader) -> ElfFile:
    head = reader.at(0, min(64, reader.size_bytes))
    if len(head) < 20 or head[:4] != b"\x7fELF":
        raise DamagedError("not an ELF file")
    order = "<" if head[5:6] == b"\1" else ">"
    bits = {1: 32, 2: 64}.get(head[4])
    kind, machine = struct.unpack_from(order + "HH", head, 16)
    name = MACHINES.get(machine, f"machine {machine}")
    known = replace(file, machine=name, bits=bits, kind=KINDS.get(kind))
    if bits != 64 or order != "<":
        return replace(known, error="not a 64-bit little-endian file")
    if known.kind is None:
        return replace(known, error="not a program or a shared library")
    return known


def _read_segments(file: ElfFile, reader: FileReader) -> ElfFile:
    headers = list(_program_headers(reader))
    loads = tuple(Part(vaddr, offset, size) for kind, offset, vaddr, size in headers if kind == PT_LOAD)
    file = replace(file, loads=loads, interpreter=_interpreter(reader, headers))
    for kind, offset, _, size in headers:
        if kind == PT_DYNAMIC:
            return _read_dynamic(file, reader, offset, size)
    return file


def _program_headers(reader: FileReader) -> Iterator[tuple[int, int, int, int]]:
    """Type, file offset, address and size in the file of each segment."""
    (table,) = struct.unpack("<Q", reader.at(32, 8))
    size, count = struct.unpack("<HH", reader.at(54, 4))
    if (count and size != 56) or count > MAX_HEADERS:
        raise DamagedError(f"{count} program headers of {size} bytes")
    for kind, _, offset, vaddr, _, in_file, _, _ in struct.iter_unpack("<IIQQQQQQ", reader.at(table, size * count)):
        yield kind, offset, vaddr, in_file


def _interpreter(reader: FileReader, headers: list[tuple[int, int, int, int]]) -> str | None:
    return next((reader.text(offset) for kind, offset, _, _ in headers if kind == PT_INTERP), None)


def _read_dynamic(file: ElfFile, reader: FileReader, offset: int, size: int) -> ElfFile:
    data = reader.at(offset, min(size // 16, MAX_DYNAMIC_ENTRIES) * 16)
    entries: list[tuple[int, int]] = []
    for tag, value in struct.iter_unpack("<QQ", data):
        if tag == 0:
            break
        entries.append((tag, value))
    file = replace(file, dynamic=tuple(entries))
    strings = file.tag(DT_STRTAB)
    return file if strings is None else _name(file, reader, file.offset(strings))


def _name(file: ElfFile, reader: FileReader, strings: int) -> ElfFile:
    def texts(tag: int) -> list[str]:
        return [reader.text(strings + value) for name, value in file.dynamic if name == tag]

    def folders(tag: int) -> tuple[str, ...] | None:
        found = texts(tag)
        return tuple(found[0].split(":")) if found else None

    return replace(
        file,
        soname=next(iter(texts(DT_SONAME)), None),
        needed=tuple(texts(DT_NEEDED)),
        rpath=folders(DT_RPATH),
        runpath=folders(DT_RUNPATH),
        default_folders=not (file.tag(DT_FLAGS_1) or 0) & DF_1_NODEFLIB,
    )


def sections(file: ElfFile) -> tuple[Section, ...]:
    """The sections that hold bytes in the file, by header order; empty where there are none or they are damaged."""
    try:
        with FileReader(file.path) as reader:
            return tuple(_sections(reader))
    except (OSError, DamagedError, struct.error):
        return ()


def _sections(reader: FileReader) -> Iterator[Section]:
    (table,) = struct.unpack("<Q", reader.at(40, 8))
    size, count, names_index = struct.unpack("<HHH", reader.at(58, 6))
    if size != 64 or names_index >= count:
        return
    rows = list(struct.iter_unpack("<IIQQQQIIQQ", reader.at(table, size * count)))
    names = reader.at(rows[names_index][4], rows[names_index][5])
    for name, kind, _, _, offset, in_file, *_ in rows:
        if kind not in {0, 8}:  # SHT_NULL and SHT_NOBITS hold nothing
            end = names.find(b"\0", name)
            yield Section(names[name:end].decode("utf-8", "replace"), offset, in_file)
