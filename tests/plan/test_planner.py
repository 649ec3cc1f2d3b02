"""What holds for every host and every deployment."""

from __future__ import annotations

from itertools import combinations
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.plan.machines import CONTEXT, deployment
from toolkit.config.models import Deployment
from toolkit.errors import ToolkitError
from toolkit.host.model import ContainerLimits, Core, Gpu, GpuLink, Host, MigDevice, NumaNode
from toolkit.plan import Grant, Need, Plan, make
from toolkit.units import GIB, MIB

RESOURCES = {"gpus", "gpu_memory", "cpus", "nvlink", "mig", "port"}


@st.composite
def hosts(draw: st.DrawFn) -> Host:
    nodes = draw(st.integers(1, 3))
    threads = draw(st.sampled_from([1, 2]))
    per_node = draw(st.integers(1, 8))
    total = nodes * per_node
    cores = [Core(cpus=tuple(c + t * total for t in range(threads)), cache_group=c // 2) for c in range(total)]
    every = [cpu for core in cores for cpu in core.cpus]
    near = [tuple(cpu for c in range(n * per_node, (n + 1) * per_node) for cpu in cores[c].cpus) for n in range(nodes)]
    gpus = [draw(_gpus(i, near)) for i in range(draw(st.sampled_from([0, 1, 2, 4, 4, 6, 8, 10])))]
    pairs = list(combinations(range(len(gpus)), 2))
    linked = draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    return Host(
        gpus=tuple(gpus),
        links=tuple(GpuLink(a=a, b=b, link=draw(st.sampled_from(["NV4", "PIX", "SYS", None]))) for a, b in linked),
        cores=tuple(cores),
        cpus_allowed=tuple(sorted(set(every) - draw(st.sets(st.sampled_from(every), max_size=3)) or every)),
        numa=tuple(NumaNode(node=n, cpus=near[n]) for n in range(nodes)),
        mems_allowed=draw(st.sampled_from([None, (0,), tuple(range(nodes))])),
        limits=ContainerLimits(cpu_quota=draw(st.sampled_from([None, None, None, 2.5, 8.0]))),
        context_bytes=draw(st.sampled_from([None, CONTEXT])),
    )


@st.composite
def _gpus(draw: st.DrawFn, index: int, near: list[tuple[int, ...]]) -> Gpu:
    node = draw(st.integers(0, len(near) - 1))
    known = draw(st.booleans())
    cut = draw(st.sampled_from([*[None] * 6, 0, 3]))
    memory = draw(st.sampled_from([24 * GIB, 24 * GIB, 24 * GIB, 80 * GIB + 5, None]))
    return Gpu(
        index=index,
        uuid=f"GPU-{index:02}-x",
        name="A",
        memory_bytes=memory,
        used_bytes=draw(st.sampled_from([0, 0, 0, 610 * MIB + 1, 23 * GIB, None])),
        numa_nodes=(node,) if known else draw(st.sampled_from([None, (-1,), ()])),
        cpus=near[node] if known else None,
        compute_mode=draw(st.sampled_from([None, None, None, "Default", "Exclusive_Process", "Prohibited"])),
        mig=None if cut is None else tuple(
            MigDevice(uuid=f"MIG-{index:02}-{i}", index=i, profile=None, memory_bytes=12 * GIB) for i in range(cut)
        ),
    )  # fmt: skip


@st.composite
def deployments(draw: st.DrawFn) -> Deployment:
    names = [f"s{i}" for i in range(draw(st.integers(1, 7)))]
    return deployment(**{name: draw(_services(names[:i])) for i, name in enumerate(names)})


@st.composite
def _services(draw: st.DrawFn, earlier: list[str]) -> dict[str, Any]:
    tp_size = draw(st.sampled_from([1, 1, 1, 2, 3]))
    keys: dict[str, Any] = {"cpus": draw(st.sampled_from([*["auto"] * 8, 1, 1, 2, 3, "0", "1-2"]))}
    wanted = draw(st.sampled_from([0, tp_size, tp_size, tp_size, 2 * tp_size]))
    if wanted:
        keys |= {"gpus": {"count": wanted, "share": draw(st.integers(0, 3)) > 0}, "tp_size": tp_size}
        keys["nvlink"] = draw(st.sampled_from(["preferred", "preferred", "required"]))
        memory = draw(st.sampled_from([None, "2GiB", "2GiB", "2GiB", "7000000001B", "30GiB"]))
        keys |= {"gpu_memory": memory} if memory else {}
    if earlier and draw(st.booleans()):
        keys[draw(st.sampled_from(["after", "requires"]))] = [draw(st.sampled_from(earlier))]
    if draw(st.integers(0, 9)) == 9:
        keys["port"] = draw(st.sampled_from([8001, 8002]))
    return keys


NEEDS = st.dictionaries(
    st.sampled_from(["s0", "s1", "s2"]),
    st.builds(
        Need,
        weights_bytes=st.sampled_from([None, GIB, 5 * GIB + 3]),
        kv_bytes_per_token=st.sampled_from([0, 4096]),
        activation_bytes=st.just(MIB),
        graph_pool_bytes=st.just(0),
        max_seq_len=st.just(2048),
        max_batch_size=st.sampled_from([None, 64]),
    ),
)
GRANTS = st.lists(
    st.builds(
        Grant,
        owner=st.just("other"),
        cpus=st.sampled_from([(), (0,)]),
        devices=st.dictionaries(st.sampled_from(["GPU-00-x", "GPU-01-x"]), st.sampled_from([None, 3 * GIB + 1])),
    ),
    max_size=1,
)


def check(plan: Plan, host: Host, wanted: Deployment, grants: list[Grant]) -> None:
    services = {service.name: service for service in plan.services}
    assert sorted(services) == sorted(wanted.services)
    _check_cpus(services, host, grants)
    _check_devices(services, host, wanted, grants)
    assert all(line.free_bytes >= 0 and line.total_bytes % MIB == 0 for line in plan.ledger)
    assert len({service.port for service in services.values()}) == len(services)
    _check_waves(services, wanted)


def check_refusal(error: ToolkitError, wanted: Deployment) -> None:
    assert error.details["resource"] in RESOURCES
    assert error.details["needed"] > error.details["available"]
    assert error.details["services"]
    assert set(error.details["services"]) <= set(wanted.services)
    assert error.what
    assert error.where


def _check_waves(services: dict[str, Any], wanted: Deployment) -> None:
    for name, service in services.items():
        assert all(services[early].wave < service.wave for early in wanted.services[name].after)
    for a, b in combinations(services.values(), 2):
        shared = {device.uuid for device in a.devices} & {device.uuid for device in b.devices}
        assert a.wave != b.wave or not shared


def _check_cpus(services: dict[str, Any], host: Host, grants: list[Grant]) -> None:
    held = {cpu for grant in grants for cpu in grant.cpus}
    for service in services.values():
        assert service.cpus
        assert set(service.cpus) <= set(host.cpus_allowed) - held
        assert set(service.memory_bind or ()) <= set(service.numa_nodes)
        assert service.memory_bind or service.notes
    for a, b in combinations(services.values(), 2):
        assert (a.cpus_shared and b.cpus_shared) or not set(a.cpus) & set(b.cpus)


def _check_devices(services: dict[str, Any], host: Host, wanted: Deployment, grants: list[Grant]) -> None:
    there = {part.uuid for gpu in host.gpus for part in (gpu.mig if gpu.mig is not None else (gpu,))}
    users: dict[str, list[str]] = {}
    for name, service in services.items():
        uuids = [device.uuid for device in service.devices]
        assert len(set(uuids)) == len(uuids) == wanted.services[name].gpus.size
        assert set(uuids) <= there
        assert wanted.services[name].tp_size == 1 or not any(uuid.startswith("MIG") for uuid in uuids)
        for uuid in uuids:
            users.setdefault(uuid, []).append(name)
    taken = {uuid for grant in grants for uuid in grant.devices}
    for uuid, names in users.items():
        if len(names) > 1 or uuid in taken:
            assert all(wanted.services[name].gpus.share for name in names)
            assert all(services[name].devices[0].budget_bytes is not None for name in names)
    for a, b in combinations(services.values(), 2):
        if {d.uuid for d in a.devices} & {d.uuid for d in b.devices}:
            assert a.wave != b.wave


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(hosts(), deployments(), NEEDS, GRANTS)
def test_a_plan_is_lawful_or_its_refusal_names_a_resource_and_an_amount(
    host: Host, wanted: Deployment, needs: dict[str, Need], grants: list[Grant]
):
    try:
        plan = make(wanted, host, needs, grants=grants)
    except ToolkitError as error:
        check_refusal(error, wanted)
        return
    check(plan, host, wanted, grants)
    assert plan == make(wanted, host, needs, grants=grants)


@settings(max_examples=60, deadline=None)
@given(hosts(), deployments())
def test_whole_cores_go_to_one_service_unless_lists_split_them_or_a_note_says_so(host: Host, wanted: Deployment):
    try:
        plan = make(wanted, host)
    except ToolkitError:
        return
    split = [s.name for s in plan.services if any("too few whole cores" in note for note in s.notes)]
    counted = [
        s
        for s in plan.services
        if not isinstance(wanted.services[s.name].cpus, tuple) and not s.cpus_shared and s.name not in split
    ]
    for a, b in combinations(counted, 2):
        assert not any(set(core.cpus) & set(a.cpus) and set(core.cpus) & set(b.cpus) for core in host.cores)
