"""The supervisor's Prometheus metrics, in a registry of their own."""

from __future__ import annotations

import math

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from toolkit.supervise import placement, stage_parts
from toolkit.supervise.gates import Instances
from toolkit.supervise.lifecycle import ILLEGAL_ARROWS, Instance, State
from toolkit.supervise.lifecycle.actions import Compiled, Drifted, Moved, Refused

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """Counts what is told and shows what is true."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        service = ["service"]
        self._state = Gauge(
            "coexist_state", "1 for the state the service is in", ["service", "state"], registry=registry
        )
        self._moves = Counter("coexist_transitions", "State changes", ["service", "from", "to"], registry=registry)
        self._refused = Counter(
            "coexist_illegal_transitions", "Illegal stage arrows refused", ["from", "to"], registry=registry
        )
        self._restarts = Counter("coexist_restarts", "Restarts after failures", service, registry=registry)
        self._late = Gauge("coexist_late_compiles", "Compiles after READY, this attempt", service, registry=registry)
        self._compiled = Counter(
            "coexist_late_compiled", "Compiles after READY seen so far, by channel", ["service", "channel"],
            registry=registry,
        )  # fmt: skip
        self._first = Gauge(
            "coexist_first_token_seconds", "Time to the first token", ["service", "which"], registry=registry
        )
        self._stages = Gauge(
            "coexist_stage_seconds", "Time in each stage, last attempt", ["service", "stage"], registry=registry
        )
        self._parts = Gauge(
            "coexist_part_seconds", "Time of each part of a stage, last attempt", ["service", "stage", "part"],
            registry=registry,
        )  # fmt: skip
        self._part_bytes = Gauge(
            "coexist_part_bytes", "Memory that each part of a stage added, last attempt",
            ["service", "stage", "part", "where"], registry=registry,
        )  # fmt: skip
        self._drift = Gauge(
            "coexist_placement_drift", "Things that are not where they were planned", ["service", "what"],
            registry=registry,
        )  # fmt: skip
        self._drifts = Counter(
            "coexist_placement_drifts", "Drifts from the plan seen so far", service, registry=registry
        )
        self._on_plan = Gauge(
            "coexist_threads_on_plan_ratio", "Threads held to the planned CPUs", service, registry=registry
        )
        self._of_services = (
            *(self._state, self._moves, self._restarts, self._late, self._first, self._stages),
            *(self._drift, self._drifts, self._on_plan, self._compiled, self._parts, self._part_bytes),
        )
        self._ready = Gauge("coexist_ready", "1 while every required service is ready", registry=registry)
        for source, target in ILLEGAL_ARROWS:
            self._refused.labels(source.value, target.value)

    def count(self, name: str, told: Moved | Refused | Drifted | Compiled) -> None:
        """Counts a state change, one that was refused, a drift, or compiles after READY."""
        if isinstance(told, Drifted):
            self._drifts.labels(name).inc()
        elif isinstance(told, Compiled):
            for each in told.new:
                self._compiled.labels(name, each.channel).inc(each.count)
        elif isinstance(told, Refused):
            self._refused.labels(told.source.value, told.target.value).inc()
        else:
            self._moves.labels(name, told.source.value, told.target.value).inc()
            self._restarts.labels(name).inc(told.source is State.BACKOFF and told.target is State.INIT)

    def forget(self, name: str) -> None:
        """Shows nothing more of a service that is no part of the deployment any more."""
        for metric in self._of_services:
            samples = [sample.labels for family in metric.collect() for sample in family.samples]
            for values in {tuple(labels.values()) for labels in samples if labels.get("service") == name}:
                metric.remove(*values)

    def text(self, instances: Instances, ready: bool, now_s: float) -> bytes:
        """All metrics in Prometheus' text format."""
        self._ready.set(ready)
        for instance in instances.values():
            self._show(instance, now_s)
        return generate_latest(self._registry)

    def _show(self, instance: Instance, now_s: float) -> None:
        name = instance.name
        for state in State:
            self._state.labels(name, state.value).set(state is instance.state)
        self._restarts.labels(name)
        self._late.labels(name).set(math.nan if instance.late_compiles is None else instance.late_compiles)
        self._show_placement(instance)
        for stage in instance.stages:
            left_s = now_s if stage.left_s is None else stage.left_s
            self._stages.labels(name, stage.state.value).set(left_s - stage.entered_s)
        self._show_parts(instance)
        if instance.first is not None:
            shown = {"first": instance.first.ms, "p50": instance.first.p50_ms, "p99": instance.first.p99_ms}
            for which, value_ms in shown.items():
                if value_ms is not None:
                    self._first.labels(name, which).set(value_ms / 1000)

    def _show_parts(self, instance: Instance) -> None:
        for part in stage_parts.of(instance):
            labels = instance.name, part.stage.value, part.name
            if part.seconds is not None:
                self._parts.labels(*labels).set(part.seconds)
            for where, size in (("host", part.host_bytes), ("gpu", part.gpu_bytes)):
                if size is not None:
                    self._part_bytes.labels(*labels, where).set(size)

    def _show_placement(self, instance: Instance) -> None:
        found, name = instance.placement, instance.name
        self._drifts.labels(name)
        percent = found.threads.on_plan_percent if found else None
        self._on_plan.labels(name).set(math.nan if percent is None else percent / 100)
        for kind, number in placement.kinds(found.drift if found else ()).items():
            self._drift.labels(name, kind.replace(" ", "_")).set(number if found else math.nan)
