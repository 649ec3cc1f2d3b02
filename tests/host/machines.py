"""Small fake machines: /sys and /proc trees, and an NVML that answers from data."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from toolkit.host.nvml import Memory, MigFacts, NvLink, NvmlError, Process
from toolkit.units import GIB, format_cpu_list

INITIAL_NAMESPACE = "pid:[4026531836]"


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")


@dataclass
class Machine:
    """A tree under ``root``; the properties are what ``probe`` takes."""

    root: Path

    def __post_init__(self):
        self.namespace(INITIAL_NAMESPACE)
        write(self.proc, {"meminfo": "MemTotal:       67108864 kB"})

    @property
    def sysfs(self):
        return self.root / "sys"

    @property
    def proc(self):
        return self.root / "proc"

    @property
    def world(self):
        (self.root / "dev/shm").mkdir(parents=True, exist_ok=True)
        return {"sysfs": self.sysfs, "proc": self.proc, "dev": self.root / "dev"}

    def namespace(self, target: str):
        link = self.proc / "self/ns/pid"
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(target)

    def cpus(self, cores: list[tuple[int, ...]], sockets: list[int] | None = None, cache: int | None = None):
        """Cores by their logical CPUs; ``cache``: how many cores share a last-level cache."""
        online = sorted(cpu for core in cores for cpu in core)
        write(self.sysfs, {"devices/system/cpu/online": format_cpu_list(online)})
        for at, core in enumerate(cores):
            group = cores[at - at % cache : at - at % cache + cache] if cache else cores
            shared = format_cpu_list(cpu for one in group for cpu in one)
            for cpu in core:
                write(
                    self.sysfs / f"devices/system/cpu/cpu{cpu}",
                    {
                        "topology/thread_siblings_list": format_cpu_list(core),
                        "topology/physical_package_id": str(sockets[at] if sockets else 0),
                        "cache/index0/level": "1",
                        "cache/index0/shared_cpu_list": format_cpu_list(core),
                        "cache/index3/level": "3",
                        "cache/index3/shared_cpu_list": shared,
                    },
                )

    def nodes(self, lists: dict[int, str], distance: dict[int, str] | None = None, kib: int = 33554432):
        write(self.sysfs, {"devices/system/node/online": format_cpu_list(lists)})
        for node, cpus in lists.items():
            files = {"cpulist": cpus, "meminfo": f"Node {node} MemTotal:       {kib} kB\nNode {node} MemFree: 1 kB"}
            files["distance"] = (distance or {}).get(node, " ".join("10" if to == node else "21" for to in lists))
            write(self.sysfs / f"devices/system/node/node{node}", files)

    def status(self, cpus: str, mems: str = "0"):
        write(self.proc, {"self/status": f"Name:\tx\nCpus_allowed_list:\t{cpus}\nMems_allowed_list:\t{mems}"})

    def pci(self, path: str, numa_node: int = -1) -> Path:
        """A PCI device at a path such as ``pci0000:00/0000:00:01.0/0000:01:00.0``."""
        device = self.sysfs / "devices" / path
        write(device, {"numa_node": str(numa_node)})
        link = self.sysfs / "bus/pci/devices" / device.name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(device)
        return device

    def network(self, kind: str, name: str, device: Path):
        folder = self.sysfs / "class" / kind / name
        folder.mkdir(parents=True)
        (folder / "device").symlink_to(device)

    def process(self, pid: int, name: str, opened: tuple[str, ...] = ()):
        write(self.proc, {f"{pid}/comm": name})
        for at, target in enumerate(opened):
            link = self.proc / f"{pid}/fd/{at}"
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(target)

    def cgroup(self, paths: str, mounts: list[str], files: dict[str, str]):
        write(self.proc, {"self/cgroup": paths, "self/mountinfo": "\n".join(mounts)})
        write(self.sysfs / "fs/cgroup", files)


def mount_v1(controllers: str, root: str = "/") -> str:
    return f"33 31 0:30 {root} /sys/fs/cgroup/{controllers} rw,relatime - cgroup cgroup rw,{controllers}"


def mount_v2(folder: str = "", root: str = "/") -> str:
    return f"41 31 0:38 {root} /sys/fs/cgroup{folder} rw,relatime - cgroup2 cgroup2 rw,nsdelegate"


@dataclass
class FakeGpu:
    """Answers of one GPU; a value None is a question that NVML refuses."""

    id: str = "GPU-4bdddec5-0579-0e70-ffd4-e0c1be738760"
    product: str | None = "NVIDIA H200"
    bus_id: str | None = "00000000:01:00.0"
    total: Memory | None = field(default_factory=lambda: Memory(140 * GIB, 0))
    held: tuple[Process, ...] | None = ()
    mode: str | None = "Default"
    slices: tuple[MigFacts, ...] | None = None
    near_cpus: tuple[int, ...] | None = None
    near_nodes: tuple[int, ...] | None = None
    own_node: int | None = None
    links: tuple[NvLink, ...] = ()

    def uuid(self):
        return self.id

    def name(self):
        return _told(self.product)

    def pci_bus_id(self):
        return _told(self.bus_id)

    def compute_capability(self):
        return "9.0"

    def memory(self):
        return _told(self.total)

    def processes(self):
        return _told(self.held)

    def compute_mode(self):
        return _told(self.mode)

    def mig(self):
        return self.slices

    def cpus(self):
        return _told(self.near_cpus)

    def numa_nodes(self):
        return _told(self.near_nodes)

    def own_numa_node(self):
        return _told(self.own_node)

    def nvlinks(self):
        return self.links


def _told(value):
    if value is None:
        raise NvmlError("Not Supported")
    return value


@dataclass
class FakeNvml:
    """GPUs by index; an exception in place of one is raised when it is asked for."""

    gpus: list = field(default_factory=list)
    ancestors: dict = field(default_factory=dict)
    peers: dict = field(default_factory=dict)

    def driver_version(self):
        return "580.95.05"

    def cuda_version(self):
        return "13.0"

    def count(self):
        return len(self.gpus)

    def device(self, index):
        if isinstance(self.gpus[index], Exception):
            raise self.gpus[index]
        return self.gpus[index]

    def ancestor(self, a, b):
        return _told(self.ancestors.get((a, b)))

    def peers_over_nvlink(self, a, b):
        return _told(self.peers.get((a, b)))

    def close(self):
        pass
