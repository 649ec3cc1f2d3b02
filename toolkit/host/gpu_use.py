"""Who uses each device's memory at this moment: the part of the machine that changes, asked of NVML alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from toolkit.host.holders import holders
from toolkit.host.model import Holder
from toolkit.host.nvml import Device, MigFacts, Nvml, NvmlError
from toolkit.host.nvml import load as load_nvml


@dataclass(frozen=True)
class DeviceUse:
    """A GPU or a MIG slice. ``used_bytes`` counts the driver's own part; None: the driver doesn't tell."""

    uuid: str
    index: int
    total_bytes: int | None
    used_bytes: int | None
    holders: tuple[Holder, ...] = ()


def read(nvml: Nvml | None = None, proc: Path = Path("/proc")) -> tuple[DeviceUse, ...]:
    """Every device that answers, by index; none where there is no driver."""
    try:
        library = load_nvml() if nvml is None else nvml
    except NvmlError:
        return ()
    try:
        return tuple(use for index in range(library.count()) for use in _uses(library, index, proc))
    except NvmlError:
        return ()
    finally:
        if nvml is None:
            library.close()


def _uses(nvml: Nvml, index: int, proc: Path) -> Iterator[DeviceUse]:
    try:
        device = nvml.device(index)
        slices = _slices(device)
        if slices is None:
            yield _whole(device, index, proc)
    except NvmlError:  # one that fell off the bus says nothing of the others
        return
    yield from (_slice(facts, index, proc) for facts in slices or ())


def _slices(device: Device) -> tuple[MigFacts, ...] | None:
    try:
        return device.mig()
    except NvmlError:
        return None


def _whole(device: Device, index: int, proc: Path) -> DeviceUse:
    memory = device.memory()
    try:
        processes = device.processes()
    except NvmlError:
        processes = None
    used = memory.used_bytes + memory.reserved_bytes
    return DeviceUse(device.uuid(), index, memory.total_bytes, used, holders(proc, processes, memory))


def _slice(facts: MigFacts, index: int, proc: Path) -> DeviceUse:
    memory = facts.memory
    used = memory.used_bytes + memory.reserved_bytes
    return DeviceUse(facts.uuid, index, memory.total_bytes, used, holders(proc, facts.processes, memory))
