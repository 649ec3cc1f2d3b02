"""A host drawn for a terminal: sockets, nodes, GPUs, links, network cards, limits, and who is where."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from toolkit.host.model import UNLIMITED, ContainerLimits, Gpu, Holder, Host, MigDevice, NumaNode
from toolkit.units import format_bytes, format_cpu_list

UNKNOWN = "?"


def draw(host: Host) -> RenderableType:
    """The host, readable at 80 columns."""
    parts = (
        _title(host),
        _nodes(host),
        _gpus(host),
        _holders(host),
        _links(host),
        _nics(host),
        _limits(host),
        _notes(host),
    )
    return Group(*(part for part in parts if part is not None))


def _title(host: Host) -> Text:
    cpus = {cpu for core in host.cores for cpu in core.cpus}
    facts = [
        host.hostname or "unnamed host",
        "recorded" if host.recorded else "",
        f"driver {host.driver_version}" if host.driver_version else "",
        f"CUDA {host.cuda_driver_version}" if host.cuda_driver_version else "",
        f"{len(host.cores)} cores, {len(host.cpus_allowed)} of {len(cpus)} CPUs allowed",
        f"memory {_size(host.memory_bytes)}",
    ]
    return Text(" · ".join(filter(None, facts)), style="bold")


def _table(*heads: str) -> Table:
    table = Table(box=None, padding=(0, 1), pad_edge=False, header_style="dim")
    for head in heads:
        table.add_column(Text(head), overflow="fold", no_wrap=head in ("UUID", "used / total"))
    return table


def _titled(title: str, table: Table) -> Group:
    return Group(Text(f"\n{title}", style="bold"), table)


def _row(table: Table, *cells: str) -> None:
    table.add_row(*(Text(cell) for cell in cells))


def _nodes(host: Host) -> RenderableType:
    table = _table("socket", "node", "CPUs", "cores", "memory", "GPUs")
    for node in host.numa:
        if node.cpus:
            _row(table, _sockets(host, node), str(node.node), *_node_cells(host, node))
    for name, cells in _memory_only(host):
        _row(table, "-", name, *cells)
    if not any(node.cpus for node in host.numa):
        cpus = [cpu for core in host.cores for cpu in core.cpus]
        _row(table, _join(core.socket for core in host.cores), UNKNOWN, format_cpu_list(cpus), str(len(host.cores)))
    return _titled("Sockets and NUMA nodes", table)


def _node_cells(host: Host, node: NumaNode) -> tuple[str, ...]:
    allowed = set(node.cpus) & set(host.cpus_allowed)
    said = format_cpu_list(node.cpus)
    if allowed != set(node.cpus):
        said += f" (allowed: {format_cpu_list(allowed) or 'none'})"
    cores = sum(core.numa_node == node.node for core in host.cores)
    near = (str(gpu.index) for gpu in host.gpus if node.node in (gpu.numa_nodes or ()))
    return said, str(cores), _size(node.memory_bytes), " ".join(near)


def _memory_only(host: Host) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Nodes without CPUs, those of one size and owner in one row."""
    owner = {gpu.gpu_numa_id: gpu.index for gpu in host.gpus if gpu.gpu_numa_id is not None}
    nodes = [node for node in host.numa if not node.cpus]
    for node in (node for node in nodes if node.node in owner):
        yield str(node.node), ("none: GPU memory", "0", _size(node.memory_bytes), str(owner[node.node]))
    rest = sorted((node for node in nodes if node.node not in owner), key=lambda node: node.memory_bytes or 0)
    for size, group in groupby(rest, key=lambda node: node.memory_bytes):
        yield format_cpu_list(node.node for node in group), ("none", "0", _size(size) if size else "empty", "")


def _sockets(host: Host, node: NumaNode) -> str:
    return _join(core.socket for core in host.cores if core.numa_node == node.node)


def _join(sockets: Iterable[int | None]) -> str:
    known = {socket for socket in sockets if socket is not None}
    return format_cpu_list(known) or UNKNOWN


def _gpus(host: Host) -> RenderableType:
    if not host.gpus:
        return Text("\nNo GPUs")
    table = _table("GPU", "name", "UUID", "used / total", "node", "CPUs")
    for gpu in host.gpus:
        _row(table, str(gpu.index), _gpu_name(gpu), *_gpu_cells(gpu))
        for device in gpu.mig or ():
            _row(table, f"{gpu.index}.{device.index}", f"MIG {device.profile or UNKNOWN}", *_mig_cells(device))
    return _titled("GPUs", table)


def _gpu_name(gpu: Gpu) -> str:
    name = (gpu.name or UNKNOWN).removeprefix("NVIDIA ")
    mode = gpu.compute_mode if gpu.compute_mode not in (None, "Default") else None
    extras = [mode, "MIG on" if gpu.mig is not None else None]
    return ", ".join(filter(None, [name, *extras]))


def _gpu_cells(gpu: Gpu) -> tuple[str, ...]:
    nodes = UNKNOWN if gpu.numa_nodes is None else format_cpu_list(gpu.numa_nodes)
    cpus = UNKNOWN if gpu.cpus is None else format_cpu_list(gpu.cpus)
    return gpu.uuid[:12], _used(gpu.used_bytes, gpu.memory_bytes), nodes, cpus


def _mig_cells(device: MigDevice) -> tuple[str, ...]:
    return device.uuid[:12], _used(device.used_bytes, device.memory_bytes), "", ""


def _used(used: int | None, total: int | None) -> str:
    return f"{_size(used)} / {_size(total)}"


def _size(count: int | None) -> str:
    return UNKNOWN if count is None else format_bytes(count)


def _holders(host: Host) -> Text | None:
    """Who holds memory, a line for each device that is not empty."""
    devices = [(f"GPU {gpu.index}", gpu.holders) for gpu in host.gpus]
    devices += [(f"GPU {gpu.index}.{one.index}", one.holders) for gpu in host.gpus for one in gpu.mig or ()]
    lines = [f"  {name:<9}{', '.join(map(_holder, holders))}" for name, holders in devices if holders]
    return Text("\n".join(["", "Who holds GPU memory", *lines])) if lines else None


def _holder(holder: Holder) -> str:
    name = holder.name or "unknown holder"
    pid = f" ({holder.pid})" if holder.pid is not None else ""
    return f"{name}{pid} {_size(holder.used_bytes)}"


def _links(host: Host) -> RenderableType | None:
    kinds = {link.link for link in host.links}
    if not host.links:
        return None
    if len(kinds) == 1 and len(host.gpus) > 2:
        return Text(f"\nLinks between GPUs: {kinds.pop() or UNKNOWN} between any two")
    names = {(link.a, link.b): link.link or UNKNOWN for link in host.links}
    indices = [gpu.index for gpu in host.gpus]
    table = _table("", *map(str, indices))
    for a in indices:
        cells = ("·" if a == b else names.get((min(a, b), max(a, b)), UNKNOWN) for b in indices)
        _row(table, str(a), *cells)
    return _titled("Links between GPUs", table)


def _nics(host: Host) -> RenderableType | None:
    if not host.nics:
        return None
    table = _table("name", "node", "nearest GPUs", "level")
    for nic in host.nics:
        near = UNKNOWN if nic.nearest_gpus is None else format_cpu_list(nic.nearest_gpus) or "-"
        _row(table, nic.name, UNKNOWN if nic.numa_node is None else str(nic.numa_node), near, nic.link or "-")
    return _titled("Network cards", table)


def _limits(host: Host) -> Text:
    lines = [f"  {name:<20}{value}" for name, value in _limit_lines(host, host.limits)]
    return Text("\n".join(["", "Limits", *lines]))


def _limit_lines(host: Host, limits: ContainerLimits) -> Iterator[tuple[str, str]]:
    yield "allowed CPUs", format_cpu_list(host.cpus_allowed)
    yield "allowed nodes", UNKNOWN if host.mems_allowed is None else format_cpu_list(host.mems_allowed)
    yield "CPU quota", "none" if limits.cpu_quota is None else f"{limits.cpu_quota:g} CPUs"
    used = f", {_size(limits.memory_used_bytes)} used" if limits.memory_used_bytes is not None else ""
    yield "container memory", ("no limit" if limits.memory_bytes is None else _size(limits.memory_bytes)) + used
    yield "/dev/shm", _size(limits.shm_bytes)  # noqa: S108 - a name, no file is made
    yield "locked memory", _limit(limits.memlock_bytes)
    yield "open files", {None: UNKNOWN, UNLIMITED: "unlimited"}.get(limits.open_files, str(limits.open_files))
    yield "memory policy", {None: UNKNOWN, True: "permitted", False: "refused"}[limits.mempolicy_permitted]
    yield "MPS daemon", {None: UNKNOWN, True: "running", False: "none"}[host.mps_daemon]
    yield "one CUDA context", _size(host.context_bytes) if host.gpus else "-"


def _limit(count: int | None) -> str:
    return "unlimited" if count == UNLIMITED else _size(count)


def _notes(host: Host) -> Text | None:
    return Text("\n".join(["", "Notes", *(f"  {note}" for note in host.notes)])) if host.notes else None
