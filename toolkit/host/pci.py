"""Where PCI devices hang in /sys, and how two of them reach each other."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from toolkit.host.files import read_int

_ADDRESS = re.compile(r"([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})\.(\d)")
LEVELS = ("PIX", "PXB", "PHB", "NODE", "SYS")


@dataclass(frozen=True)
class PciPlace:
    """``path``: host bridge, then every bridge down to the device; ``numa_node`` None: unknown."""

    path: tuple[str, ...]
    numa_node: int | None


def address(text: str) -> str | None:
    """The address as /sys writes it (``0000:0a:00.0``) of NVML's ``00000000:0A:00.0``; None when it is none."""
    match = _ADDRESS.fullmatch(text)
    return f"{int(match[1], 16):04x}:{match[2]}:{match[3]}.{match[4]}".lower() if match else None


def address_in(path: Path) -> str | None:
    """The last PCI address in a /sys path: of a device, or of what a virtual one sits on."""
    return next((part.lower() for part in reversed(path.parts) if _ADDRESS.fullmatch(part)), None)


def place(sysfs: Path, bus_id: str) -> PciPlace | None:
    """Place of the device with this address; None when /sys doesn't have it."""
    link = sysfs / "bus/pci/devices" / bus_id
    if not link.exists():
        return None
    node = read_int(link / "numa_node")  # -1 in a virtual machine: unknown, not node 0
    path = tuple(part for part in link.resolve().parts if _ADDRESS.fullmatch(part) or part.startswith("pci"))
    return PciPlace(path, node if node is not None and node >= 0 else None)


def level(a: PciPlace, b: PciPlace) -> str | None:
    """How the two reach each other, in nvidia-smi's words; None: the nodes are unknown and nothing nearer is shared."""
    pairs = zip(a.path, b.path, strict=False)
    shared = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
    if shared == 0:
        if a.numa_node is None or b.numa_node is None:
            return None
        return "NODE" if a.numa_node == b.numa_node else "SYS"
    if shared == 1:
        return "PHB"
    # One switch is an upstream port and a downstream port for each device; more bridges are more than one switch.
    return "PIX" if max(len(a.path), len(b.path)) - shared <= 2 else "PXB"


def nearest(device: PciPlace, gpus: Mapping[int, PciPlace]) -> tuple[tuple[int, ...] | None, str | None]:
    """GPUs at the closest level and that level; None when a level is unknown that might be the closest."""
    levels = {index: level(device, gpu) for index, gpu in gpus.items()}
    known = [found for found in levels.values() if found is not None]
    closest = min(known, key=LEVELS.index, default=None)
    if len(known) < len(levels) and closest not in LEVELS[:3]:
        return None, None
    return tuple(index for index, found in levels.items() if found == closest), closest
