"""GPU code inside a library: architectures of its kernels and of its PTX, by the headers of its fat binaries.

Layout (little-endian), as nvcc 12 and 13 write it, read back from libraries compiled for known targets: a container has
a magic number, u16 version, u16 header size, u64 payload size; its entries have u16 kind (1 PTX, 2 machine code), u16
version, u32 header size, u64 payload size, and at 28 u32 architecture, at 40 u64 flags. Payloads may be compressed,
headers never are.
"""

from __future__ import annotations

import re
import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import total_ordering
from pathlib import Path
from typing import Literal

from toolkit.environments import elf
from toolkit.environments.elf import DamagedError, FileReader, Section

SECTIONS = (".nv_fatbin", "__nv_relfatbin")
MAGIC = 0xBA55ED50
CONTAINER = struct.Struct("<IHHQ")
ENTRY = struct.Struct("<HHIQIIHHIIIQ")
KINDS: dict[int, Literal["ptx", "cubin"]] = {1: "ptx", 2: "cubin"}
ARCHITECTURE_SPECIFIC, FAMILY_SPECIFIC = 1 << 20, 1 << 21
MAX_ENTRIES = 500_000
GAP_BYTES = 4096  # containers follow each other, padded to their alignment


@total_ordering
@dataclass(frozen=True)
class Target:
    """What one piece of GPU code is for: compute capability 9.0 with suffix ``a`` is sm_90a."""

    kind: Literal["ptx", "cubin"]
    arch: int
    suffix: Literal["", "a", "f"] = ""

    def __str__(self) -> str:
        return f"{'sm' if self.kind == 'cubin' else 'compute'}_{self.arch}{self.suffix}"

    def __lt__(self, other: Target) -> bool:
        return (self.kind, self.arch, self.suffix) < (other.kind, other.arch, other.suffix)

    def runs_on(self, capability: int) -> bool:
        """Whether a GPU of this compute capability (9.0 is 90) can run the code, translated first when it is PTX.

        Source: CUDA C++ Programming Guide, binary and PTX compatibility; NVCC manual, family-specific features.
        """
        if self.suffix == "a":
            return capability == self.arch
        same_major = capability // 10 == self.arch // 10 and capability >= self.arch
        return same_major if self.kind == "cubin" or self.suffix == "f" else capability >= self.arch


@dataclass(frozen=True)
class GpuCode:
    """The GPU code of one file: how many containers hold exactly which targets.

    A container is one compiled source file: all its kernels are there for each of its targets. ``error``: why the
    list may be incomplete. No containers at all: the file has no code that nvcc embedded.
    """

    containers: tuple[tuple[frozenset[Target], int], ...] = ()
    error: str | None = None

    @property
    def targets(self) -> tuple[Target, ...]:
        """Every target of any container, sorted."""
        return tuple(sorted({target for targets, _ in self.containers for target in targets}))

    def count(self) -> int:
        """Containers in the file."""
        return sum(number for _, number in self.containers)

    def without_kernel(self, compute_capability: str) -> int:
        """Containers that have nothing a GPU of this compute capability, such as ``9.0``, can run.

        Raises: ValueError when the text is no compute capability.
        """
        wanted = capability_number(compute_capability)
        return sum(number for targets, number in self.containers if not any(t.runs_on(wanted) for t in targets))


def capability_number(text: str) -> int:
    """90 for ``9.0``, ``sm_90`` or ``sm_90a``.

    Raises: ValueError when the text is neither.
    """
    match = re.fullmatch(r"(?:sm_|compute_)?(\d{1,2})(?:\.?)(\d)[af]?", text)
    if match is None:
        raise ValueError(f"'{text}' is not a compute capability; write it as 9.0 or sm_90")
    return int(match[1]) * 10 + int(match[2])


def read(path: Path) -> GpuCode:
    """The GPU code of a library; of a damaged one what could be read and ``error``."""
    places = [s for s in elf.sections(elf.ElfFile(path)) if s.name in SECTIONS]
    if not places:
        return GpuCode()
    found: Counter[frozenset[Target]] = Counter()
    error = None
    try:
        with FileReader(path) as reader:
            for place in places:
                found.update(_containers(reader, place))
    except OSError as fault:
        error = fault.strerror or "unreadable"
    except (DamagedError, struct.error) as fault:
        error = str(fault)
    return GpuCode(tuple(sorted(found.items(), key=lambda item: sorted(item[0]))), error)


def _containers(reader: FileReader, place: Section) -> Iterator[frozenset[Target]]:
    at, end = place.offset, place.offset + place.size_bytes
    budget = MAX_ENTRIES
    while at + CONTAINER.size <= end:
        magic, _, header, size = CONTAINER.unpack(reader.at(at, CONTAINER.size))
        if magic == MAGIC:
            entries = list(_entries(reader, at + header, min(at + header + size, end), budget))
            budget -= len(entries)
            yield frozenset(entry for entry in entries if entry)
            at += header + size
        else:
            skipped = reader.at(at, min(GAP_BYTES, end - at)).find(struct.pack("<I", MAGIC), 1)
            if skipped < 0:
                return
            at += skipped


def _entries(reader: FileReader, at: int, end: int, budget: int) -> Iterator[Target | None]:
    """The targets of a container; None for an entry of another kind."""
    while at + ENTRY.size <= end:
        if budget <= 0:
            raise DamagedError(f"more than {MAX_ENTRIES} pieces of GPU code")
        fields = ENTRY.unpack(reader.at(at, ENTRY.size))
        kind, header, size, arch, flags = fields[0], fields[2], fields[3], fields[8], fields[11]
        if header < ENTRY.size:
            raise DamagedError(f"a piece of GPU code at {at:#x} has a header of {header} bytes")
        name = KINDS.get(kind)
        yield Target(name, arch, _suffix(flags)) if name else None
        at += header + size
        budget -= 1


def _suffix(flags: int) -> Literal["", "a", "f"]:
    if flags & ARCHITECTURE_SPECIFIC:
        return "a"
    return "f" if flags & FAMILY_SPECIFIC else ""
