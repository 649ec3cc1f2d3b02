"""Which instance may start or must stop next, and what readiness is: pure decisions over all instances."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from toolkit.supervise.lifecycle import AT_REST, INIT, SERVING, STARTING, Failure, Instance, State
from toolkit.supervise.lifecycle.events import Begin, Blocked

_IN_FLUX = (*STARTING, State.DRAINING)  # what it holds of device memory changes


@dataclass(frozen=True)
class Gate:
    """What one service waits for. ``devices``: UUIDs; services that share one start one after another, by wave."""

    name: str
    after: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    devices: frozenset[str] = frozenset()
    wave: int = 0
    required: bool = True


Instances = Mapping[str, Instance]


def next_start(gates: Sequence[Gate], instances: Instances) -> tuple[str, Begin | Blocked] | None:
    """The first waiting instance that can begin, or never will; ask again after applying it. None: nothing to do."""
    for gate in gates:
        instance = instances[gate.name]
        if instance.state is not INIT or instance.begun:
            continue
        failed = [name for name in gate.after if instances[name].state is State.FAILED]
        if failed:
            return gate.name, Blocked(instance.attempt, _dependency_failure(failed[0], instances[failed[0]]))
        if not any(_obstacles(gate, gates, instances)):
            return gate.name, Begin(instance.attempt)
    return None


def _dependency_failure(name: str, instance: Instance) -> Failure:
    record = instance.last_failure
    cause = record.failure.summary if record else "it failed"
    return Failure(f"not started, because '{name}' failed: {cause}", "stop", "dependency", culprit=name)


def waiting_for(name: str, gates: Sequence[Gate], instances: Instances) -> tuple[str, ...]:
    """Services that this one waits for before its next attempt, each once; empty when it waits for none."""
    instance = instances[name]
    if instance.state is not INIT or instance.begun:
        return ()
    gate = next(gate for gate in gates if gate.name == name)
    return tuple(dict.fromkeys(_obstacles(gate, gates, instances)))


def _obstacles(gate: Gate, gates: Sequence[Gate], instances: Instances) -> Iterator[str]:
    yield from (name for name in gate.after if not _is_up(instances[name]))
    for other in gates:
        if other.name != gate.name and gate.devices & other.devices and _holds_back(other, gate, instances[other.name]):
            yield other.name


def _holds_back(other: Gate, gate: Gate, instance: Instance) -> bool:
    """True while a sharer of a device is starting, or comes first and is neither up nor given up."""
    waits_itself = instance.state is INIT and not instance.begun
    if instance.state in _IN_FLUX and not waits_itself:
        return True
    return other.wave < gate.wave and not _is_up(instance) and instance.state not in AT_REST


def _is_up(instance: Instance) -> bool:
    """SERVING, and its first request was measured: a start beside it would be measured too."""
    return instance.state is SERVING and instance.measured


def next_stops(gates: Sequence[Gate], instances: Instances) -> tuple[str, ...]:
    """Instances to ask to stop now when all must stop: those that nobody still running depends on."""
    running = {gate.name for gate in gates if instances[gate.name].state not in AT_REST}
    needed = {name for gate in gates if gate.name in running for name in (*gate.after, *gate.requires)}
    free = running - needed
    return tuple(gate.name for gate in gates if gate.name in (free or running) and not _stops(instances[gate.name]))


def _stops(instance: Instance) -> bool:
    return instance.ending is not None and instance.ending.then in ("stop", "fail")


def is_ready(name: str, gates: Sequence[Gate], instances: Instances) -> bool:
    """True while the service and all that it requires are SERVING."""
    gate = next(gate for gate in gates if gate.name == name)
    return all(instances[needed].state is SERVING for needed in (name, *gate.requires))


def all_ready(gates: Sequence[Gate], instances: Instances) -> bool:
    """True while every required service is ready."""
    return all(is_ready(gate.name, gates, instances) for gate in gates if gate.required)


def all_ended(instances: Instances) -> bool:
    """True when nothing runs, nothing will, and not only because a person stopped it."""
    return all_at_rest(instances) and any(instance.state is State.FAILED for instance in instances.values())


def all_at_rest(instances: Instances) -> bool:
    """True when nothing runs and nothing will."""
    return all(instance.state in AT_REST for instance in instances.values())
