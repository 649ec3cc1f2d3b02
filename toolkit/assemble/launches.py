"""From a plan to processes: what each service's runtime is told, and what the supervisor is given."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from toolkit import affinity, runtimes
from toolkit.affinity import MemoryPolicy
from toolkit.assemble import boxes, kept
from toolkit.assemble.cache_key import cache_key
from toolkit.assemble.paths import Paths
from toolkit.config.models import Deployment, Service
from toolkit.home import Home
from toolkit.host.model import Host
from toolkit.plan.model import DeviceGrant, Plan, ServicePlan
from toolkit.plan.planner import CONTEXT_BYTES
from toolkit.plan.ranks import split as split_ranks
from toolkit.runtimes.base import Assignment, Context, DeviceMemory, Launch, Program
from toolkit.runtimes.containers import contained
from toolkit.supervise.placement import Expected
from toolkit.supervise.service import ServiceRun
from toolkit.units import MIB

OPENS_NOTHING = "-"  # the token of a launch that is only shown


@dataclass(frozen=True)
class Engine:
    """A built engine: its folder, what its builder says of it, and what speaks against serving it here."""

    folder: Path
    fingerprint: str
    facts: Mapping[str, Any]
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Stage:
    """Everything that launches are made of. ``engines`` by engine name, ``references`` and ``programs`` by service."""

    deployment: Deployment
    host: Host
    plan: Plan
    paths: Paths
    home: Home
    engines: Mapping[str, Engine]
    references: Mapping[str, Mapping[str, Any]]
    environ: Mapping[str, str]
    programs: Mapping[str, Program | None] = field(default_factory=dict)


def launch(stage: Stage, name: str, token: str, key: str | None = None) -> Launch:
    """The process of one service; ``token`` lets coexist in before the service is registered.

    ``key``: names its cache folder (``fingerprint``); by default the environment is looked at now.

    Raises: ToolkitError when its runtime cannot do what is asked.
    """
    service = stage.deployment.services[name]
    given, assigned = context(stage, name, token, key), assignment(stage.host, stage.plan, name, service)
    made = runtimes.get(service.runtime).launch(given, assigned)
    environment = stage.deployment.environments.get(service.environment or "")
    if environment is None or environment.image is None:
        return made
    return contained(made, boxes.box(stage.host, given, environment, _planned(stage.plan, name)), assigned)


def launches(stage: Stage) -> dict[str, Launch]:
    """Every service's process, to be shown: their tokens open nothing."""
    return {service.name: launch(stage, service.name, OPENS_NOTHING) for service in stage.plan.services}


def context(stage: Stage, name: str, token: str, key: str | None = None) -> Context:
    """Where the service runs."""
    service = stage.deployment.services[name]
    engine = stage.engines.get(service.engine or "")
    recipe = stage.paths.engines.get(service.engine or "")
    return Context(
        deployment=stage.deployment,
        name=name,
        service=service,
        python=stage.paths.pythons[name],
        model_dir=stage.paths.models.get(name),
        engine_dir=engine.folder if engine else _not_built(service.engine),
        engine_manifest=engine.facts if engine else None,
        recipe=recipe.recipe.model if recipe else None,
        cache_dir=cache_dir(stage, name, key or fingerprint(stage, name)),
        token=token,
        reference=stage.references.get(name),
        environ=stage.environ,
        program=stage.programs.get(name),
        run_dir=stage.home.run(stage.deployment.name, name),
        tokenizer_dir=stage.paths.source(name, service),
        log_dir=stage.home.rank_logs(stage.deployment.name, name),
    )


def cache_dir(stage: Stage, name: str, key: str) -> Path:
    """The service's own caches, of the environment with this fingerprint."""
    return stage.home.cache(stage.deployment.name, name) / key


def fingerprint(stage: Stage, name: str) -> str:
    """Of the environment that the service runs in, and what it runs on."""
    environment = stage.deployment.environments.get(stage.deployment.services[name].environment or "")
    devices = (device.uuid for device in _planned(stage.plan, name).devices)
    return cache_key(stage.paths.pythons[name], environment, stage.host, devices)


def _not_built(engine: str | None) -> Path | None:
    """Stands for the folder of an engine in a plan for another machine."""
    return None if engine is None else Path(f"<engine {engine}>")


def assignment(host: Host, plan: Plan, name: str, service: Service) -> Assignment:
    """The plan's part for one service, as its runtime takes it."""
    planned = _planned(plan, name)
    cores = sum(1 for core in host.cores if set(core.cpus) & set(planned.cpus))
    return Assignment(
        cpus=planned.cpus,
        port=planned.port,
        device_uuids=tuple(device.uuid for device in planned.devices),
        device_indices=tuple(device.index for device in planned.devices),
        budget_bytes=tuple(device.budget_bytes for device in planned.devices),
        numa_nodes=planned.numa_nodes,
        memory_bind=planned.memory_bind,
        physical_cores=cores or None,
        rank_cpus=_rank_cpus(host, planned, service.world_size),
        memory=tuple(_memory(host, plan, planned, device) for device in planned.devices),
        compute_capabilities=tuple(_capability(host, device.uuid) for device in planned.devices),
    )


def _capability(host: Host, uuid: str) -> str | None:
    """Of the GPU, or of the one that a slice is of."""
    owners = (gpu for gpu in host.gpus if uuid in (gpu.uuid, *(slice_.uuid for slice_ in gpu.mig or ())))
    return next((gpu.compute_capability for gpu in owners), None)


def _rank_cpus(host: Host, planned: ServicePlan, ranks: int) -> tuple[tuple[int, ...], ...]:
    """The part of each rank of the CPUs, beside its device where that is known; nothing to divide for one rank."""
    if ranks == 1:
        return ()
    near = {gpu.uuid: gpu.numa_nodes for gpu in host.gpus}
    nodes = [(near.get(device.uuid) or (None,))[0] for device in planned.devices]
    return split_ranks(planned.cpus, host.cores, nodes if len(nodes) == ranks else [None] * ranks)


def _memory(host: Host, plan: Plan, planned: ServicePlan, device: DeviceGrant) -> DeviceMemory:
    line = next((line for line in plan.ledger if line.device_uuid == device.uuid), None)
    later = frozenset(each.name for each in plan.services if each.wave > planned.wave)
    alone = frozenset({planned.name})
    return DeviceMemory(
        total_bytes=device.total_bytes,
        budget_bytes=device.budget_bytes,
        context_bytes=host.context_bytes or CONTEXT_BYTES,
        fixed_bytes=planned.fixed_bytes,
        kv_bytes_per_token=planned.kv_bytes_per_token,
        weights_bytes=planned.weights_bytes,
        tokens_per_block=planned.kv.tokens_per_block if planned.kv else None,
        free_bytes=line.free_without(alone | later) if line else None,
        free_beside_all_bytes=line.free_without(alone) if line else None,
    )


def service_runs(stage: Stage) -> list[ServiceRun]:
    """What the supervisor is told of every service."""
    return [service_run(stage, planned) for planned in stage.plan.services]


def fingerprints(engines: Mapping[str, Engine]) -> dict[str, str]:
    """Of the engines, by name."""
    return {name: engine.fingerprint for name, engine in engines.items()}


def service_run(stage: Stage, planned: ServicePlan) -> ServiceRun:
    """What the supervisor is told of one service."""
    service = stage.deployment.services[planned.name]
    policy = affinity.choose(stage.host, planned.numa_nodes, planned.memory_bind)
    key = fingerprint(stage, planned.name)
    shown = launch(stage, planned.name, OPENS_NOTHING, key)
    return ServiceRun(
        name=planned.name,
        runtime=planned.runtime,
        launch=lambda attempt: launch(stage, planned.name, secrets.token_urlsafe(24), key),
        launch_as=lambda token: launch(stage, planned.name, token, key),
        port=planned.port,
        cpus=planned.cpus,
        memory_policy=policy,
        gpus=tuple(_gpu(device) for device in planned.devices),
        after=planned.after,
        requires=service.requires,
        wave=planned.wave,
        warmup=service.warmup,
        restart=service.restart,
        grace_s=service.grace,
        late_compile=service.late_compile,
        expected=_expected(stage, planned, policy),
        spec=kept.spec(stage.deployment, stage.paths, fingerprints(stage.engines), planned.name),
        placed=kept.placed(stage.plan, planned),
        cache_dir=cache_dir(stage, planned.name, key),
        fingerprint=key,
        history=stage.home.history(stage.deployment.name, planned.name),
        learns=service.preload_window is None,
        quiet_s=service.quiet_window,
        container=shown.container,
        other_ports=shown.ports,
    )


def _expected(stage: Stage, planned: ServicePlan, policy: MemoryPolicy) -> Expected:
    service = stage.deployment.services[planned.name]
    return Expected(
        memory_nodes=planned.memory_bind or planned.numa_nodes,
        bound=policy.kind == "bind",
        node_count=len(stage.host.numa),
        budgets={device.uuid: device.budget_bytes for device in planned.devices},
        alone=not service.gpus.share or any(device.budget_bytes is None for device in planned.devices),
        context_bytes=stage.host.context_bytes or CONTEXT_BYTES,
    )


def with_notes(stage: Stage, shown: Mapping[str, Launch]) -> Plan:
    """The plan, with what else there is to say of each service: of its memory, its engine, and by its runtime."""

    def notes(planned: ServicePlan) -> tuple[str, ...]:
        engine = _engine_warnings(stage, planned.name)
        return (*planned.notes, *_preference(stage.host, planned), *engine, *shown[planned.name].notes)

    services = (replace(each, notes=notes(each)) for each in stage.plan.services)
    return replace(stage.plan, services=tuple(services))


def _engine_warnings(stage: Stage, name: str) -> tuple[str, ...]:
    used = stage.deployment.services[name].engine or ""
    engine = stage.engines.get(used)
    return tuple(f"engine '{used}': {text}" for text in engine.warnings) if engine is not None else ()


def _preference(host: Host, planned: ServicePlan) -> tuple[str, ...]:
    policy = affinity.choose(host, planned.numa_nodes, planned.memory_bind)
    return (f"memory {policy.why}",) if policy.kind == "preferred" else ()


def _gpu(device: DeviceGrant) -> dict[str, Any]:
    budget = device.budget_bytes
    return {"uuid": device.uuid, "index": device.index, "budget_mib": None if budget is None else -(-budget // MIB)}


def _planned(plan: Plan, name: str) -> ServicePlan:
    return next(service for service in plan.services if service.name == name)
