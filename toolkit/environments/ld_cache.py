"""/etc/ld.so.cache: the libraries that ldconfig found, in glibc's two binary formats."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

OLD_MAGIC, NEW_MAGIC = b"ld.so-1.7.0", b"glibc-ld.so.cache1.1"
OLD_HEADER_BYTES, OLD_ENTRY = 16, struct.Struct("<iII")
NEW_HEADER_BYTES, NEW_ENTRY = 48, struct.Struct("<iIIIQ")
EXTENSION_MAGIC, HWCAPS_TAG, HWCAP_BY_NAME = 0xEAA42174, 1, 1 << 62
# Kind of library by machine: glibc's sysdeps/generic/ldconfig.h, FLAG_* with FLAG_ELF_LIBC6.
FLAGS = {"x86_64": 0x0303, "aarch64": 0x0A03, "i386": 0x0003, "ppc64": 0x0503, "riscv": 0x1003}
MAX_BYTES = 64 << 20


class Entry(NamedTuple):
    """One library: ``hwcap`` names the CPU level it is built for, such as ``x86-64-v3``; None: any CPU."""

    soname: str
    path: Path
    flags: int
    hwcap: str | None


@dataclass(frozen=True)
class LdCache:
    """The libraries of a cache, in its order; ``error`` says why it is empty."""

    entries: tuple[Entry, ...] = ()
    error: str | None = None

    def find(self, soname: str, machine: str, hwcaps: tuple[str, ...] = ()) -> Path | None:
        """The library that the loader takes for a name: the best CPU level of ``hwcaps`` (best first), else plain."""
        flags = FLAGS.get(machine)
        fitting = {e.hwcap: e.path for e in reversed(self.entries) if e.soname == soname and e.flags == flags}
        return next((fitting[level] for level in (*hwcaps, None) if level in fitting), None)


def read(path: Path) -> LdCache:
    """The cache; empty with ``error`` when it is missing or damaged."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES)
    except OSError as error:
        return LdCache(error=error.strerror or "unreadable")
    return parse(data)


def parse(data: bytes) -> LdCache:
    """The cache in these bytes; empty with ``error`` when they are none."""
    try:
        return LdCache(tuple(_parse(data)))
    except (struct.error, ValueError, IndexError) as error:
        return LdCache(error=f"damaged: {error}")


def _parse(data: bytes) -> Iterator[Entry]:
    if data.startswith(NEW_MAGIC):
        return _parse_new(data)
    if not data.startswith(OLD_MAGIC):
        raise ValueError("not a cache of glibc's ldconfig")
    (count,) = struct.unpack_from("<I", data, 12)
    end = OLD_HEADER_BYTES + count * OLD_ENTRY.size
    new = (end + 7) // 8 * 8
    if data[new : new + len(NEW_MAGIC)] == NEW_MAGIC:
        return _parse_new(data[new:])
    return _parse_old(data, count, end)


def _parse_old(data: bytes, count: int, strings: int) -> Iterator[Entry]:
    for flags, key, value in _rows(OLD_ENTRY, data, OLD_HEADER_BYTES, count):
        yield Entry(_text(data, strings + key), Path(_text(data, strings + value)), flags, None)


def _parse_new(data: bytes) -> Iterator[Entry]:
    (count,) = struct.unpack_from("<I", data, 20)
    names = _hwcap_names(data)
    for flags, key, value, _, hwcap in _rows(NEW_ENTRY, data, NEW_HEADER_BYTES, count):
        level = names[hwcap & 0xFFFFFFFF] if hwcap & HWCAP_BY_NAME else None
        if level is None and hwcap:
            continue  # platform bits of glibc before 2.33
        yield Entry(_text(data, key), Path(_text(data, value)), flags, level)


def _rows(layout: struct.Struct, data: bytes, offset: int, count: int) -> Iterator[tuple[int, ...]]:
    end = offset + count * layout.size
    if end > len(data):
        raise ValueError(f"{count} entries do not fit into {len(data)} bytes")
    return layout.iter_unpack(data[offset:end])


def _text(data: bytes, offset: int) -> str:
    end = data.index(b"\0", offset)
    return data[offset:end].decode("utf-8", "surrogateescape")


def _hwcap_names(data: bytes) -> tuple[str, ...]:
    (extensions,) = struct.unpack_from("<I", data, 32)
    if not extensions:
        return ()
    magic, count = struct.unpack_from("<II", data, extensions)
    if magic != EXTENSION_MAGIC:
        raise ValueError("no extensions where the header says")
    for row in _rows(struct.Struct("<IIII"), data, extensions + 8, count):
        tag, _, offset, size = row
        if tag == HWCAPS_TAG:
            return tuple(_text(data, at) for at in struct.unpack_from(f"<{size // 4}I", data, offset))
    return ()
