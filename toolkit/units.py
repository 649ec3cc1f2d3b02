"""Bytes, durations and CPU lists, as people write them and as code keeps them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from fractions import Fraction

KIB, MIB, GIB, TIB = 1024, 1024**2, 1024**3, 1024**4

_SIZE_FACTORS = {
    "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KIB": KIB, "MIB": MIB, "GIB": GIB, "TIB": TIB,
}  # fmt: skip
_DURATION_FACTORS = {"ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0}
_QUANTITY = re.compile(r"\s*([0-9]{1,18}(?:\.[0-9]{1,9})?)\s*([A-Za-z]+)\s*")
_CPU_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9})(?::([0-9]{1,9})/([0-9]{1,9}))?)?")
MAX_CPU = 1 << 16


def parse_bytes(text: str) -> int:
    """Bytes in a size with a unit, such as ``60GiB`` or ``512 MB``.

    Raises: ValueError when the unit is missing or not one of B, KB, MB, GB, TB, KiB, MiB, GiB, TiB.
    """
    match = _QUANTITY.fullmatch(text)
    factor = _SIZE_FACTORS.get(match[2].upper()) if match else None
    if match is None or factor is None:
        raise ValueError(f"'{text}' is not a size; write a number and a unit, such as 60GiB or 512MiB")
    return int(Fraction(match[1]) * factor)


def format_bytes(count: int) -> str:
    """A size for people, in binary units with one decimal."""
    for name, factor in (("TiB", TIB), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if abs(count) >= factor:
            return f"{count / factor:.1f} {name}"
    return f"{count} B"


def parse_duration_s(text: str) -> float:
    """Seconds in a duration with a unit, such as ``30s``, ``10min``, ``250ms`` or ``1h``.

    Raises: ValueError when the unit is missing or unknown.
    """
    match = _QUANTITY.fullmatch(text)
    factor = _DURATION_FACTORS.get(match[2]) if match else None
    if match is None or factor is None:
        raise ValueError(f"'{text}' is not a duration; write a number and a unit (ms, s, min, h), such as 30s")
    return float(match[1]) * factor


def format_duration(seconds: float) -> str:
    """A duration for people: ``850 ms``, ``12.3 s``, ``4 min 05 s``."""
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s"


def parse_cpu_list(text: str) -> tuple[int, ...]:
    """Sorted logical CPUs of a kernel list such as ``0-15,32-47`` (strides ``0-10:2/4`` too); empty text is no CPU.

    Raises: ValueError when the text is no such list or a number is over 65535.
    """
    cpus: set[int] = set()
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        cpus.update(_parse_cpu_range(part, text))
    return tuple(sorted(cpus))


def _parse_cpu_range(part: str, text: str) -> Iterable[int]:
    match = _CPU_RANGE.fullmatch(part)
    if match is None:
        raise ValueError(f"'{text}' is not a CPU list; write it as the kernel does, such as 0-15,32-47")
    first, last = int(match[1]), int(match[2] or match[1])
    used, group = int(match[3] or 1), int(match[4] or 1)
    if last < first or last >= MAX_CPU or group < 1:
        raise ValueError(f"'{text}' is not a CPU list: '{part}' runs backwards or past {MAX_CPU - 1}")
    return (cpu for cpu in range(first, last + 1) if (cpu - first) % group < used)


def format_cpu_list(cpus: Iterable[int]) -> str:
    """The kernel's list of these CPUs: ``0-15,32-47``; no CPU is the empty text."""
    ranges: list[list[int]] = []
    for cpu in sorted(set(cpus)):
        if ranges and cpu == ranges[-1][1] + 1:
            ranges[-1][1] = cpu
        else:
            ranges.append([cpu, cpu])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in ranges)
