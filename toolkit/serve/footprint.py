"""What this process holds of main memory, and what is used of its GPU; nothing is imported for it."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

STATM = Path("/proc/self/statm")
Held = Mapping[str, int]


def held() -> Held:
    """Bytes by place: ``host`` (resident), and ``gpu`` once a CUDA context is there; what is not told is absent."""
    gpu = _gpu_used_bytes()
    host = _resident_bytes()
    return {**({} if host is None else {"host": host}), **({} if gpu is None else {"gpu": gpu})}


def growth(before: Held, after: Held) -> dict[str, int]:
    """What was added, for each place that is told in both."""
    return {place: after[place] - before[place] for place in after if place in before}


def _resident_bytes() -> int | None:
    try:
        return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None


def _gpu_used_bytes() -> int | None:
    """Of the device as a whole: starts on a GPU follow each other, so what grows meanwhile is ours."""
    cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return None
    free_bytes, total_bytes = cuda.mem_get_info()
    return int(total_bytes - free_bytes)
