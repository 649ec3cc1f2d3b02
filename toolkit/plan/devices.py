"""Which devices a host has for us, a GPU or a MIG slice each, and which of them a service named."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from toolkit.errors import ToolkitError
from toolkit.host.model import Gpu, Holder, Host, MigDevice
from toolkit.names import nearest
from toolkit.plan.model import Grant, Reservation
from toolkit.plan.refusal import count, does_not_fit, listed
from toolkit.units import MIB, format_cpu_list

UNKNOWN = "unknown holder"


@dataclass(frozen=True)
class Device:
    """A device and what is left of it. ``usable_bytes`` is in whole MiB and without what others hold; None: unknown.

    ``numa_nodes`` are those near it; empty: unknown. ``node`` is the first of them that has CPUs, ``locality`` an
    index into ``localities``; None: unknown. ``exclusive``: the driver lets one process use it at a time. ``shared``:
    another deployment holds a part of it. ``barred``: why it is out of reach altogether.
    """

    uuid: str
    index: int
    name: str | None
    total_bytes: int | None
    usable_bytes: int | None
    is_mig: bool
    numa_nodes: tuple[int, ...]
    node: int | None
    locality: int | None
    used_known: bool = True
    held: tuple[Reservation, ...] = ()
    exclusive: bool = False
    shared: bool = False
    barred: str | None = None

    @property
    def numa_known(self) -> bool:
        return bool(self.numa_nodes)

    @property
    def label(self) -> str:
        return f"MIG device {self.uuid}" if self.is_mig else f"GPU {self.index}"


def floor_mib(size_bytes: int) -> int:
    """The bytes of the whole MiB in it."""
    return size_bytes // MIB * MIB


def ceil_mib(size_bytes: int) -> int:
    """The bytes of the whole MiB around it."""
    return -(-size_bytes // MIB) * MIB


def localities(host: Host) -> tuple[frozenset[int], ...]:
    """The distinct sets of CPUs that are near a GPU, in GPU order."""
    return tuple(dict.fromkeys(near for gpu in _by_index(host) if (near := _near_cpus(gpu, host))))


def devices(host: Host, grants: Sequence[Grant] = ()) -> tuple[Device, ...]:
    """Every device that exists, barred ones included, by GPU index and then slice index."""
    near = localities(host)
    return tuple(_device(gpu, part, host, near, grants) for gpu in _by_index(host) for part in _parts(gpu))


def _by_index(host: Host) -> list[Gpu]:
    return sorted(host.gpus, key=lambda gpu: gpu.index)


def _parts(gpu: Gpu) -> Iterable[Gpu | MigDevice]:
    return [gpu] if gpu.mig is None else sorted(gpu.mig, key=lambda part: part.index)


def _device(
    gpu: Gpu, part: Gpu | MigDevice, host: Host, near: tuple[frozenset[int], ...], grants: Sequence[Grant]
) -> Device:
    cpus = _near_cpus(gpu, host)
    total = None if part.memory_bytes is None else floor_mib(part.memory_bytes)
    held = (*_foreign(part, grants), *_granted(part.uuid, grants))
    mode = (gpu.compute_mode or "").lower()
    return Device(
        uuid=part.uuid,
        index=gpu.index,
        name=gpu.name,
        total_bytes=total,
        usable_bytes=None if total is None else total - sum(r.size_bytes for r in held),
        is_mig=part is not gpu,
        numa_nodes=_numa_nodes(gpu),
        node=_first_node(gpu, host),
        locality=near.index(cpus) if cpus else None,
        used_known=part.used_bytes is not None,
        held=held,
        exclusive=mode.startswith("exclusive"),
        shared=any(part.uuid in grant.devices for grant in grants),
        barred=_barred(part.uuid, mode, grants),
    )


def _numa_nodes(gpu: Gpu) -> tuple[int, ...]:
    """Known nodes; -1 is sysfs's way to say unknown."""
    nodes = gpu.numa_nodes or ()
    return () if any(node < 0 for node in nodes) else nodes


def _first_node(gpu: Gpu, host: Host) -> int | None:
    with_cpus = {node.node for node in host.numa if node.cpus}
    return next((node for node in _numa_nodes(gpu) if node in with_cpus), None)


def _near_cpus(gpu: Gpu, host: Host) -> frozenset[int]:
    """The GPU's CPU affinity, else the CPUs of its NUMA nodes; empty: unknown."""
    if gpu.cpus:
        return frozenset(gpu.cpus)
    nodes = _numa_nodes(gpu)
    return frozenset(cpu for node in host.numa if node.node in nodes for cpu in node.cpus)


def _barred(uuid: str, mode: str, grants: Sequence[Grant]) -> str | None:
    if mode.startswith("prohibited"):
        return "compute mode is Prohibited"
    return next((f"held by {g.owner}" for g in grants if uuid in g.devices and g.devices[uuid] is None), None)


def _granted(uuid: str, grants: Sequence[Grant]) -> Iterable[Reservation]:
    for grant in grants:
        size = grant.devices.get(uuid)
        if size is not None:
            yield Reservation(None, ceil_mib(size), f"held by {grant.owner}")


def _foreign(part: Gpu | MigDevice, grants: Sequence[Grant]) -> Iterable[Reservation]:
    """What processes of no deployment hold: named holders first, then the rest of what the driver counts as used."""
    ours = {pid for grant in grants for pid in grant.pids}
    in_grants = sum(h.used_bytes or 0 for h in part.holders if h.pid in ours) + _hidden_bytes(part, grants)
    strangers = [holder for holder in part.holders if holder.pid not in ours]
    named = [Reservation(None, ceil_mib(h.used_bytes), _holder(h)) for h in strangers if h.used_bytes and _is_named(h)]
    yield from named
    rest = ceil_mib(max(0, (part.used_bytes or 0) - in_grants)) - sum(r.size_bytes for r in named)
    if rest > 0:
        unmeasured = [_holder(holder) for holder in strangers if holder.used_bytes is None]
        yield Reservation(None, rest, listed(unmeasured) if unmeasured else UNKNOWN)


def _hidden_bytes(part: Gpu | MigDevice, grants: Sequence[Grant]) -> int:
    """Use by nobody we can see that is a deployment's, at most what it was granted: a container hides its pids."""
    seen = {holder.pid for holder in part.holders}
    granted = sum(grant.devices.get(part.uuid) or 0 for grant in grants if not seen & grant.pids)
    return min(granted, sum(holder.used_bytes or 0 for holder in part.holders if not _is_named(holder)))


def _is_named(holder: Holder) -> bool:
    return holder.pid is not None or holder.name is not None


def _holder(holder: Holder) -> str:
    if holder.pid is None:
        return f"the {holder.name}" if holder.name else UNKNOWN
    return f"{holder.name or 'process'} (pid {holder.pid})"


def named(requests: Sequence[int | str], found: Sequence[Device], host: Host, service: str) -> tuple[int, ...]:
    """Positions in ``found`` of the devices that a service asks for by index or UUID.

    Raises: ToolkitError when one is unknown, ambiguous, cut into MIG slices, or named twice.
    """
    positions = [_position(request, found, host, service) for request in requests]
    if len(set(positions)) < len(positions):
        twice = next(found[p] for p in positions if positions.count(p) > 1)
        raise ToolkitError(
            f"{twice.label} is named twice", f"services.{service}.gpus", "Name each GPU once.", code="duplicate_gpu"
        )
    return tuple(positions)


def _position(request: int | str, found: Sequence[Device], host: Host, service: str) -> int:
    if isinstance(request, int):
        return _position_of_index(request, found, host, service)
    wanted = request.lower()
    exact = [p for p, device in enumerate(found) if device.uuid.lower() == wanted]
    matches = exact or [p for p, device in enumerate(found) if device.uuid.lower().startswith(wanted)]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise _ambiguous(request, [found[p] for p in matches], service)
    whole = next((gpu for gpu in _by_index(host) if gpu.uuid.lower().startswith(wanted)), None)
    if whole is not None:
        raise _cut_up(whole, service)
    raise _unknown(request, found, host, service)


def _position_of_index(index: int, found: Sequence[Device], host: Host, service: str) -> int:
    gpu = next((gpu for gpu in host.gpus if gpu.index == index), None)
    if gpu is None:
        raise _unknown(index, found, host, service)
    if gpu.mig is not None:
        raise _cut_up(gpu, service)
    return next(p for p, device in enumerate(found) if device.index == index)


def _unknown(request: int | str, found: Sequence[Device], host: Host, service: str) -> ToolkitError:
    what = (
        f"GPU {request} not found; {_has(host)}." if isinstance(request, int) else _unknown_uuid(request, found, host)
    )
    return does_not_fit(
        what, resource="gpus", needed=1, available=0, services=[service], key="gpus", hint="See 'coexist host'."
    )


def _unknown_uuid(request: str, found: Sequence[Device], host: Host) -> str:
    near = nearest(request, [device.uuid for device in found])
    return f"no GPU or MIG device is {request}{f'; nearest: {near}' if near else ''}; {_has(host)}."


def _has(host: Host) -> str:
    indices = format_cpu_list(gpu.index for gpu in host.gpus)
    return f"this host has {indices}" if indices else "this host has no GPU"


def _ambiguous(request: str, matches: Sequence[Device], service: str) -> ToolkitError:
    names = ", ".join(device.uuid for device in matches)
    return does_not_fit(
        f"'{request}' is the start of {count(len(matches), 'UUID')}, so it names none: {names}",
        resource="gpus",
        needed=1,
        available=0,
        services=[service],
        key="gpus",
        hint="Write more of it.",
    )


def _cut_up(gpu: Gpu, service: str) -> ToolkitError:
    slices = ", ".join(part.uuid for part in gpu.mig or ())
    hint = f"Name one of its slices: {slices}." if slices else "It has no slices; create one or turn MIG off."
    return does_not_fit(
        f"MIG is on for GPU {gpu.index}, so the GPU as a whole cannot be used",
        resource="mig",
        needed=1,
        available=0,
        services=[service],
        key="gpus",
        hint=hint,
    )
