"""Reads the tables beside this file."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path
from typing import Any

import yaml

from toolkit.facts.model import (
    Architecture,
    AttentionRule,
    Claim,
    Closeness,
    Driver,
    Fact,
    Facts,
    FlashRow,
    Fp8Checkpoints,
    HeadSize,
    Hiding,
    Release,
    TorchAbi,
)

HERE = Path(__file__).parent
TABLES = ("sources", "trtllm_releases", "flash_attn", "cuda", "attention")
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast where libyaml is there


@functools.lru_cache(maxsize=1)
def load() -> Facts:
    """The facts that come with coexist, read once."""
    return read(HERE)


def read(folder: Path) -> Facts:
    """The facts in a folder's tables."""
    texts = {name: (folder / f"{name}.yaml").read_bytes() for name in TABLES}
    sources, releases, flash, cuda, attention = (parse(texts[name]) for name in TABLES)
    return Facts(
        version=hashlib.sha256(b"\0".join(texts.values())).hexdigest()[:16],
        sources=sources,
        releases=tuple(_release(row) for row in releases["rows"]),
        flash=tuple(FlashRow(**_frozen(row)) for row in flash["rows"]),
        torch_abi=tuple(TorchAbi(**_frozen(row)) for row in flash["torch_abi"]),
        hides_flash_attn_4=Hiding(**_frozen(flash["hides_flash_attn_4"])),
        minor_drivers=tuple(_major_driver(row) for row in cuda["minor_compatibility"]),
        drivers=tuple(Driver(**_frozen(row)) for row in cuda["drivers"]),
        architectures=tuple(Architecture(**_frozen(row)) for row in cuda["architectures"]),
        claims=tuple(Claim(**_frozen(row)) for row in attention["claims"]),
        closeness=tuple(Closeness(**_frozen(row)) for row in attention["closeness"]),
        attention=tuple(AttentionRule(**_frozen(row)) for row in attention["limits"]),
        head_sizes=tuple(HeadSize(**_frozen(row)) for row in attention["head_sizes"]),
        fp8_checkpoints=Fp8Checkpoints(**_frozen(attention["fp8_checkpoints"])),
    )


def parse(text: bytes) -> Any:
    """The content of one table."""
    return yaml.load(text, Loader=_LOADER)  # noqa: S506  a safe loader, in C where it is there


def _frozen(row: dict[str, Any]) -> dict[str, Any]:
    """A row whose lists are tuples and whose scalars keep their text: dates are told as they are written."""
    return {key: _value(value) for key, value in row.items()}


def _value(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_value(item) for item in value)
    return value if isinstance(value, (str, int, bool)) or value is None else str(value)


def _release(row: dict[str, Any]) -> Release:
    facts = {name: Fact(**_frozen(fact)) for name, fact in row.items() if isinstance(fact, dict)}
    return Release(row["versions"], facts)


def _major_driver(row: dict[str, Any]) -> Driver:
    return Driver(str(row["major"]), row["driver"], tuple(row["source"]))
