"""This machine as a frozen ``Host``: NVML, /sys, /proc and control groups, asked once."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

from toolkit.host import cgroup, cpus, gpus, nics, pci, visible
from toolkit.host.cgroup import Cgroup
from toolkit.host.files import fields, read_text, to_cpus, to_int
from toolkit.host.gpus import GpuFacts, Run
from toolkit.host.holders import in_initial_namespace
from toolkit.host.model import UNLIMITED, ContainerLimits, Gpu, GpuLink, Host, NumaNode
from toolkit.host.nvml import Nvml, NvmlError
from toolkit.host.nvml import load as load_nvml
from toolkit.units import KIB, MIB, format_bytes

# Read on an H200, driver 580: 0.70 GiB for a bare context, rounded up to a quarter of a GiB.
ASSUMED_CONTEXT_BYTES = 768 * MIB
ContextBytes = Callable[["str | None", "tuple[Gpu, ...]"], "int | None"]
_GROWS_BELOW = 0.9  # MemTotal under this share of the cgroup's limit: memory is plugged in later
_MPS_FOLDER = "/tmp/nvidia-mps"  # noqa: S108 - where NVIDIA's daemon puts its pipes by default


def probe(
    sysfs: Path = Path("/sys"),
    proc: Path = Path("/proc"),
    dev: Path = Path("/dev"),
    nvml: Nvml | None = None,
    run: Run | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    mempolicy_permitted: Callable[[], bool | None] | None = None,
    context_bytes: ContextBytes | None = None,
) -> Host:
    """This machine; whatever can't be read is None or a note, never an error.

    ``context_bytes``: what one CUDA context takes with this driver on these GPUs, where that was measured.
    """
    env = os.environ if environ is None else environ
    nodes, group = cpus.read_nodes(sysfs), cgroup.read(sysfs, proc)
    status = fields(read_text(proc / "self/status"))
    allowed = _allowed_cpus(status, group)
    cores = cpus.read_cores(sysfs, allowed, nodes)
    facts = _gpus(nvml, sysfs, proc, nodes, run or run_program)
    ours, notes = visible.narrow(facts.gpus, env.get("CUDA_VISIBLE_DEVICES"), env.get("CUDA_DEVICE_ORDER"))
    memory_bytes, memory_notes = _memory(proc, group)
    mps, mps_notes = _mps_daemon(env, proc, bool(facts.gpus))
    measured = context_bytes(facts.driver_version, ours) if context_bytes and ours else None
    context, context_notes = _context(measured, ours)
    return Host(
        hostname=socket.gethostname(),
        driver_version=facts.driver_version,
        cuda_driver_version=facts.cuda_driver_version,
        gpus=ours,
        links=_links_of(ours, facts.links),
        cores=cores,
        cpus_allowed=tuple(sorted({cpu for core in cores for cpu in core.cpus} & set(allowed))),
        numa=nodes,
        mems_allowed=_allowed_nodes(status, group, nodes),
        nics=nics.read(sysfs, _places(sysfs, ours)),
        memory_bytes=memory_bytes,
        limits=_limits(proc, dev, group, mempolicy_permitted),
        mps_daemon=mps,
        context_bytes=context,
        notes=(*facts.notes, *notes, *memory_notes, *mps_notes, *context_notes),
    )


def run_program(argv: list[str]) -> str | None:
    """What the program prints within 20 s; None when it is missing or fails."""
    program = shutil.which(argv[0])
    if program is None:
        return None
    try:
        done = subprocess.run([program, *argv[1:]], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError):
        return None
    return done.stdout if done.returncode == 0 else None


def _gpus(library: Nvml | None, sysfs: Path, proc: Path, nodes: tuple[NumaNode, ...], run: Run) -> GpuFacts:
    try:
        loaded = load_nvml() if library is None else library
    except NvmlError as error:
        return GpuFacts(notes=(f"no GPUs: {error}",))
    facts = gpus.read(gpus.Sources(loaded, sysfs, proc, nodes, run))
    if library is None:
        loaded.close()
    return facts


def _links_of(ours: tuple[Gpu, ...], links: tuple[GpuLink, ...]) -> tuple[GpuLink, ...]:
    indices = {gpu.index for gpu in ours}
    return tuple(link for link in links if {link.a, link.b} <= indices)


def _places(sysfs: Path, ours: tuple[Gpu, ...]) -> dict[int, pci.PciPlace]:
    found = {gpu.index: pci.place(sysfs, gpu.pci_bus_id) for gpu in ours if gpu.pci_bus_id}
    return {index: place for index, place in found.items() if place is not None}


def _allowed_cpus(status: Mapping[str, str], group: Cgroup) -> tuple[int, ...]:
    allowed = to_cpus(status.get("Cpus_allowed_list")) or group.cpus or ()
    both = tuple(sorted(set(allowed) & set(group.cpus or allowed)))
    return both or allowed


def _allowed_nodes(status: Mapping[str, str], group: Cgroup, nodes: tuple[NumaNode, ...]) -> tuple[int, ...] | None:
    """Nodes that memory may come from; None when neither status nor cgroup tells."""
    allowed = to_cpus(status.get("Mems_allowed_list")) or group.mems
    if allowed is None:
        return None
    online = {node.node for node in nodes} or set(allowed)
    return tuple(sorted(set(allowed) & set(group.mems or allowed) & online))


def _memory(proc: Path, group: Cgroup) -> tuple[int | None, list[str]]:
    """Memory that processes may take: MemTotal, or the cgroup's limit where that is less, or memory is to grow."""
    total_kib = to_int(fields(read_text(proc / "meminfo")).get("MemTotal", "").removesuffix("kB").strip())
    total, limit = total_kib * KIB if total_kib else None, group.memory_bytes
    if total is None or limit is None:
        return limit or total, []
    if total >= limit * _GROWS_BELOW:
        return min(total, limit), []
    said = f"MemTotal is {format_bytes(total)} now, far under the container's limit of {format_bytes(limit)}"
    return limit, [f"{said}: memory is added as it is needed, and the limit counts"]


def _limits(
    proc: Path, dev: Path, group: Cgroup, mempolicy_permitted: Callable[[], bool | None] | None
) -> ContainerLimits:
    rlimits = read_text(proc / "self/limits") or ""
    return ContainerLimits(
        cpu_quota=group.cpu_quota,
        memory_bytes=group.memory_bytes,
        memory_used_bytes=group.memory_used_bytes,
        shm_bytes=_filesystem_bytes(dev / "shm"),
        memlock_bytes=_rlimit(rlimits, "Max locked memory"),
        open_files=_rlimit(rlimits, "Max open files"),
        cgroup_version=group.version,
        mempolicy_permitted=mempolicy_permitted() if mempolicy_permitted else None,
    )


def _rlimit(text: str, name: str) -> int | None:
    """The soft limit of that name."""
    line = next((line for line in text.splitlines() if line.startswith(name)), None)
    words = line[len(name) :].split() if line else []
    if not words:
        return None
    return UNLIMITED if words[0] == "unlimited" else to_int(words[0])


def _filesystem_bytes(path: Path) -> int | None:
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    return found.f_blocks * found.f_frsize


def _mps_daemon(env: Mapping[str, str], proc: Path, has_gpus: bool) -> tuple[bool | None, list[str]]:
    """Whether NVIDIA's MPS daemon runs: its pipe folder, and its process where we can see that."""
    folder = Path(env.get("CUDA_MPS_PIPE_DIRECTORY", _MPS_FOLDER))
    if not (folder / "control").exists():
        return False, []
    if any(read_text(comm) == "nvidia-cuda-mps" for comm in proc.glob("[0-9]*/comm")):  # comm holds 15 characters
        return True, []
    if has_gpus and not in_initial_namespace(proc):
        return None, [f"{folder} is there, but an MPS daemon would be outside of this container: unknown"]
    return False, [f"{folder} is left over: no MPS daemon runs. CUDA_MPS_PIPE_DIRECTORY must not point to it"]


def _context(measured_bytes: int | None, ours: tuple[Gpu, ...]) -> tuple[int | None, list[str]]:
    if measured_bytes is not None or not ours:
        return measured_bytes, []
    said = f"a CUDA context is assumed to take {ASSUMED_CONTEXT_BYTES // MIB} MiB on each GPU"
    return ASSUMED_CONTEXT_BYTES, [f"{said}, as read on an H200 with driver 580; it was not measured here"]
