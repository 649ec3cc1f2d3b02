"""Who holds GPU memory: our processes by name, everybody else as unknown, never as nobody."""

from __future__ import annotations

from pathlib import Path

from toolkit.host.files import read_text
from toolkit.host.model import Holder
from toolkit.host.nvml import Memory, Process
from toolkit.units import MIB

_INITIAL_PID_NAMESPACE = "pid:[4026531836]"  # Linux: PROC_PID_INIT_INO
_ROUNDING_BYTES = 64 * MIB  # what a process's own count may lack of the GPU's count


def holders(proc: Path, processes: tuple[Process, ...] | None, memory: Memory | None) -> tuple[Holder, ...]:
    """Holders of a device's memory; ``processes`` None: the driver doesn't list them."""
    listed = [_holder(proc, process) for process in processes or ()]
    if memory is None:
        return tuple(listed)
    rest = memory.used_bytes - sum(holder.used_bytes or 0 for holder in listed)
    told = all(holder.used_bytes is not None for holder in listed)
    if rest > (_ROUNDING_BYTES if listed else 0) and told:
        listed.append(Holder(pid=None, name=None, used_bytes=rest))
    if memory.reserved_bytes:
        listed.append(Holder(pid=None, name="driver", used_bytes=memory.reserved_bytes))
    return tuple(listed)


def _holder(proc: Path, process: Process) -> Holder:
    ours = _is_ours(proc, process.pid)
    name = read_text(proc / str(process.pid) / "comm") if ours else None
    return Holder(pid=process.pid if ours else None, name=name, used_bytes=process.used_bytes)


def in_initial_namespace(proc: Path) -> bool:
    """Whether pids mean here what they mean to the driver."""
    try:
        return str((proc / "self/ns/pid").readlink()) == _INITIAL_PID_NAMESPACE
    except OSError:
        return False


def _is_ours(proc: Path, pid: int) -> bool:
    """Whether the driver's pid is that process here; in a container the number may be somebody else's."""
    folder = proc / str(pid)
    return folder.is_dir() and (in_initial_namespace(proc) or _has_gpu_open(folder))


def _has_gpu_open(folder: Path) -> bool:
    try:
        targets = [str(link.readlink()) for link in (folder / "fd").iterdir()]
    except OSError:
        return False
    return any(target.startswith(("/dev/nvidia", "/dev/dxg")) for target in targets)
