"""Network devices that hang on PCI, and the GPUs near each."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from toolkit.host import pci
from toolkit.host.model import Nic


def read(sysfs: Path, gpus: Mapping[int, pci.PciPlace]) -> tuple[Nic, ...]:
    """One entry per PCI device, with its InfiniBand name where it has one; ``gpus``: place by index."""
    found: dict[str, Nic] = {}
    for kind in ("infiniband", "net"):
        folder = sysfs / "class" / kind
        for device in sorted(folder.iterdir()) if folder.is_dir() else ():
            bus_id = pci.address_in((device / "device").resolve()) if (device / "device").exists() else None
            if bus_id and bus_id not in found:
                found[bus_id] = _nic(sysfs, device.name, bus_id, gpus)
    return tuple(found.values())


def _nic(sysfs: Path, name: str, bus_id: str, gpus: Mapping[int, pci.PciPlace]) -> Nic:
    place = pci.place(sysfs, bus_id)
    if place is None:
        return Nic(name=name, pci_bus_id=bus_id)
    near, link = pci.nearest(place, gpus)
    return Nic(name=name, pci_bus_id=bus_id, numa_node=place.numa_node, nearest_gpus=near, link=link)
