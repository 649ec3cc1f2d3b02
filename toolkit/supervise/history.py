"""How long a service's starts took on this host, and what the next one may take. A lost file costs nothing."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from toolkit.files import json_object, publish
from toolkit.warm.steady import percentile

KEPT_BOOTS = 64
# With fewer boots the slowest of them says too little of the next one.
MIN_BOOTS = 3
SHARE, FACTOR, FLOOR_S = 0.9, 2.0, 10.0
Cache = Literal["cold", "warm"]


@dataclass(frozen=True)
class Boot:
    """One start that became READY: seconds by stage, in which environment, with what in its compile caches."""

    environment: str
    cache: Cache
    seconds: Mapping[str, float]


def window_s(boots: Sequence[Boot], stage: str, environment: str, cache: Cache, ceiling_s: float) -> float:
    """How long a stage may take without progress being asked for: P90 of boots like it times ``FACTOR``.

    At least ``FLOOR_S``, at most ``ceiling_s``, which it is without ``MIN_BOOTS`` boots of this environment and cache.
    """
    alike = [boot.seconds[stage] for boot in _alike(boots, environment, cache) if stage in boot.seconds]
    slow_s = percentile(alike, SHARE) if len(alike) >= MIN_BOOTS else None
    return ceiling_s if slow_s is None else min(ceiling_s, max(FLOOR_S, FACTOR * slow_s))


def _alike(boots: Sequence[Boot], environment: str, cache: Cache) -> list[Boot]:
    return [boot for boot in boots if (boot.environment, boot.cache) == (environment, cache)]


def read(file: Path | None) -> tuple[Boot, ...]:
    """The boots of a file, oldest first; none where there is no file, or it says nothing sensible."""
    document = (json_object(file) if file is not None else None) or {}
    try:
        return tuple(_boot(each) for each in document["boots"])
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
        return ()


def _boot(told: Mapping[str, object]) -> Boot:
    boot = Boot(**told)  # type: ignore[arg-type]
    seconds = {str(stage): float(took) for stage, took in boot.seconds.items()}
    if boot.cache not in ("cold", "warm") or not all(0 <= took < math.inf for took in seconds.values()):
        raise ValueError("no boot")
    return Boot(str(boot.environment), boot.cache, seconds)


def add(file: Path | None, boot: Boot) -> None:
    """The file holds this boot too, and the last ``KEPT_BOOTS`` in all. A disk that refuses it changes nothing."""
    if file is None:
        return
    kept = [*read(file), boot][-KEPT_BOOTS:]
    content = json.dumps({"schema": 1, "boots": [asdict(each) for each in kept]})
    with contextlib.suppress(OSError):
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        publish(file, content.encode(), durable=False)
