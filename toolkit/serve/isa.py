"""Which instruction sets this processor has, from the kernel's list."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")
# Flags that change what a compiler may emit; the kernel's list holds many that don't (hypervisor, mitigations).
_COMPUTE = re.compile(
    r"sse\d?.*|ssse3|avx.*|fma|f16c|bmi\d|amx_.*|adx|popcnt|movbe|lzcnt|abm|aes|vaes|pclmulqdq|vpclmulqdq|gfni|sha_ni"
    r"|asimd.*|sve.*|bf16|i8mm|fp|fphp|dotprod"
)


def cpu_features(cpuinfo: Path = CPUINFO) -> tuple[str, ...]:
    """Sorted instruction-set flags of the first processor; none where the kernel doesn't say."""
    try:
        text = cpuinfo.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ()
    match = re.search(r"^(?:flags|Features)\s*:\s*(.*)$", text, re.MULTILINE)
    flags = match[1].split() if match else []
    return tuple(sorted({flag for flag in flags if _COMPUTE.fullmatch(flag)}))


def missing_features(needed: Iterable[str], cpuinfo: Path = CPUINFO) -> tuple[str, ...]:
    """Those of ``needed`` that this processor lacks, sorted; none where the kernel doesn't say what it has."""
    present = set(cpu_features(cpuinfo))
    return tuple(sorted(set(needed) - present)) if present else ()
