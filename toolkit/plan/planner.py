"""``make``: a deployment and a host in, a plan or the reason why there is none out. Pure: same input, same plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from toolkit.config.models import Deployment
from toolkit.host.model import Host
from toolkit.plan import blame, cpus, kv, memory, notes, order, ports
from toolkit.plan.board import Board, board, numa_distance
from toolkit.plan.cores import CorePool, CoreWish, Reach, all_cores, wish
from toolkit.plan.demand import Demand, demand
from toolkit.plan.devices import Device, ceil_mib, devices, localities, named
from toolkit.plan.memory import Share
from toolkit.plan.model import DeviceGrant, Grant, Plan, ServicePlan
from toolkit.plan.need import Need
from toolkit.plan.numa import binding, nodes_of
from toolkit.plan.placement import Placement, place
from toolkit.plan.placement import reach as reach_of
from toolkit.plan.remote import RemoteCount
from toolkit.plan.share_out import Claimant, CoreGrant, autos_get_one, share_out, with_splits
from toolkit.units import MIB

CONTEXT_BYTES = 768 * MIB  # a little over the 0.70 GiB of a bare context on an H200, driver 580
NOTHING: Mapping[int, str] = MappingProxyType({})


@dataclass(frozen=True)
class _Task:
    """The input, and what follows from it before anything is placed."""

    deployment: Deployment
    host: Host
    needs: Mapping[str, Need]
    context_bytes: int
    usable: tuple[Device, ...]
    barred: tuple[Device, ...]
    near: tuple[frozenset[int], ...]
    wishes: tuple[CoreWish, ...]
    pool: CorePool
    quota_left: int | None
    cpus_held: Mapping[int, str]


@dataclass(frozen=True)
class _Placed:
    """Devices of each service, as positions on the board."""

    board: Board
    positions: Mapping[str, tuple[int, ...]]
    proven: bool

    def devices(self, name: str) -> tuple[Device, ...]:
        return tuple(self.board.devices[position] for position in self.positions.get(name, ()))

    def reach(self, name: str) -> Reach:
        return reach_of(self.board, self.positions.get(name, ()))


def make(
    deployment: Deployment,
    host: Host,
    needs: Mapping[str, Need] = MappingProxyType({}),
    *,
    ports_taken: Mapping[int, str] = NOTHING,
    grants: Sequence[Grant] = (),
) -> Plan:
    """A plan that places every service, or none.

    ``needs``: what a service's engine or model says of its memory. ``ports_taken``: ports in use and by whom.
    ``grants``: what other deployments of the host hold.

    Raises: ToolkitError with ``resource``, ``needed``, ``available`` and ``services`` when it does not fit.
    """
    after = {name: service.after for name, service in deployment.services.items()}
    requires = {name: service.requires for name, service in deployment.services.items()}
    order.refuse_unknown(after, requires)
    order.refuse_cycles(after, requires)
    taken = {port: grant.owner for grant in grants for port in grant.ports} | dict(ports_taken)
    service_ports = ports.assign(deployment, taken)
    task = _task(deployment, host, needs, grants)
    placed = _placed(task)
    cores = _cores(task, placed)
    waves = order.waves(list(deployment.services), after, requires, _uuids(task, placed))
    return _plan(task, placed, cores, waves, service_ports)


def _task(deployment: Deployment, host: Host, needs: Mapping[str, Need], grants: Sequence[Grant]) -> _Task:
    found, near = devices(host, grants), localities(host)
    wishes = tuple(wish(name, service) for name, service in deployment.services.items())
    held = {cpu: grant.owner for grant in grants for cpu in grant.cpus}
    cpus.refuse_bad_lists(wishes, host, held)
    quota_left = cpus.quota_left(wishes, host)
    return _Task(
        deployment=deployment,
        host=host,
        needs=needs,
        context_bytes=ceil_mib(CONTEXT_BYTES if host.context_bytes is None else host.context_bytes),
        usable=tuple(device for device in found if device.barred is None),
        barred=tuple(device for device in found if device.barred is not None),
        near=near,
        wishes=wishes,
        pool=cpus.pool_for(wishes, host, near, held),
        quota_left=quota_left,
        cpus_held=held,
    )


def _placed(task: _Task) -> _Placed:
    """Devices for every service that wants any.

    Raises: ToolkitError with the resource that is missing.
    """
    demands = tuple(_demands(task))
    remote = RemoteCount(task.pool, len(task.near), autos_get_one(task.pool, task.wishes, task.quota_left))
    ground = _board(task, demands, task.usable)
    found = place(demands, ground, task.near, remote)
    if found is not None:
        positions = {name: tuple(p for group in groups for p in group) for name, groups in found.groups.items()}
        return _Placed(ground, positions, found.proven)

    def solve(eased: Sequence[Demand], on: Sequence[Device]) -> tuple[Placement, Board] | None:
        board_of = _board(task, eased, on)
        answer = place(eased, board_of, task.near, remote, any_will_do=True)
        return None if answer is None else (answer, board_of)

    raise blame.explain(blame.Case(demands, task.usable, task.barred, solve))


def _board(task: _Task, demands: Sequence[Demand], on: Sequence[Device]) -> Board:
    return board(task.host, on, [d.choice for d in demands if d.choice is not None])


def _demands(task: _Task) -> list[Demand]:
    return [_demand(task, name) for name, service in task.deployment.services.items() if service.gpus.size]


def _demand(task: _Task, name: str) -> Demand:
    service, need = task.deployment.services[name], task.needs.get(name)
    memory.refuse_too_little(name, service.gpu_memory, need)
    least, _ = memory.budget(service.gpu_memory, need)
    choice = None
    if service.gpus.devices:
        everything = sorted((*task.usable, *task.barred), key=lambda device: device.index)
        wanted = [everything[p] for p in named(service.gpus.devices, everything, task.host, name)]
        notes.refuse_barred(name, wanted)
        choice = frozenset(task.usable.index(device) for device in wanted)
    return demand(name, service, least, task.context_bytes, choice)


def _cores(task: _Task, placed: _Placed) -> dict[str, CoreGrant]:
    """CPUs for every service: whole cores, or single threads where whole cores do not suffice.

    Raises: ToolkitError when there are too few.
    """
    claimants = [_claimant(task, placed, one) for one in task.wishes if one.exact is None]
    exact = {
        one.name: CoreGrant(one.exact, cpus.remote_cpus(one.exact, placed.reach(one.name), task.near))
        for one in task.wishes
        if one.exact is not None
    }
    whole = share_out(claimants, task.pool, task.quota_left)
    if whole is not None:
        return whole | exact
    threads = cpus.threads_for(task.wishes, task.host, task.near, task.cpus_held)
    single = share_out(claimants, threads, task.quota_left)
    if single is None:
        raise cpus.too_few(task.wishes, threads, task.host, task.cpus_held)
    return with_splits(single | exact, all_cores(task.host))


def _claimant(task: _Task, placed: _Placed, one: CoreWish) -> Claimant:
    distances = {node.node: node.distances for node in task.host.numa}
    homes = [device.node for device in placed.devices(one.name) if device.node is not None]

    def distance(node: int | None) -> int:
        return min((numa_distance(distances, home, node) for home in homes), default=0)

    return Claimant(one, placed.reach(one.name), distance)


def _uuids(task: _Task, placed: _Placed) -> dict[str, tuple[str, ...]]:
    return {name: tuple(d.uuid for d in placed.devices(name)) for name in task.deployment.services}


def _shares(task: _Task, placed: _Placed) -> list[Share]:
    shares = []
    for name, service in task.deployment.services.items():
        if positions := placed.positions.get(name):
            need = task.needs.get(name)
            least, most = memory.budget(service.gpu_memory, need)
            shares.append(Share(name, positions, least, most, need))
    return shares


def _plan(
    task: _Task,
    placed: _Placed,
    cores: Mapping[str, CoreGrant],
    waves: Mapping[str, int],
    service_ports: Mapping[str, int],
) -> Plan:
    shares = _shares(task, placed)
    budgets = memory.grown(shares, placed.board.devices, task.context_bytes)
    services = [
        _service(
            task,
            placed,
            name,
            cores=cores[name],
            budget=budgets.get(name),
            wave=waves[name],
            port=service_ports[name],
        )
        for name in task.deployment.services
    ]
    return Plan(
        deployment=task.deployment.name,
        services=tuple(sorted(services, key=lambda service: service.wave)),
        ledger=memory.ledger(shares, budgets, placed.board.devices, task.context_bytes),
        notes=tuple(notes.of_plan(task.host, [d for s in services for d in placed.devices(s.name)], placed.proven)),
    )


def _service(
    task: _Task, placed: _Placed, name: str, *, cores: CoreGrant, budget: int | None, wave: int, port: int
) -> ServicePlan:
    service, used = task.deployment.services[name], placed.devices(name)
    bound = binding(cores.cpus, used, task.host)
    need = task.needs.get(name) if used else None
    capacity = memory.capacity(need, budget)
    remarks = notes.of_service(service, used, cores, budget, bound=bound, host=task.host)
    total = {gpu.uuid: gpu.memory_bytes for gpu in task.host.gpus}
    total |= {part.uuid: part.memory_bytes for gpu in task.host.gpus for part in gpu.mig or ()}
    return ServicePlan(
        name=name,
        runtime=service.runtime,
        devices=tuple(DeviceGrant(d.uuid, d.index, total[d.uuid], budget) for d in used),
        cpus=cores.cpus,
        cpus_shared=cores.shared,
        numa_nodes=nodes_of(cores.cpus, task.host),
        memory_bind=bound.nodes,
        port=port,
        wave=wave,
        after=service.after,
        notes=(*remarks, *([kv.describe(capacity)] if capacity else [])),
        kv=capacity,
        fixed_bytes=need.fixed_bytes if need else None,
        kv_bytes_per_token=need.kv_bytes_per_token if need else None,
        weights_bytes=need.weights_bytes if need else None,
    )
