"""Prometheus metrics of the built-in servers, in a registry of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from toolkit.serve.status import Stage, Status

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
STAGES: tuple[str, ...] = get_args(Stage)


class Metrics:
    """What both servers count: requests, stage, parts of the start, compilations, attention."""

    def __init__(self, status: Status, compile_events: Callable[[], int], attention: Callable[[], dict[str, str]]):
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "coexist_server_requests", "Inference requests by path and status.", ["path", "status"],
            registry=self.registry,
        )  # fmt: skip
        self.registry.register(_State(status, compile_events, attention))

    def text(self) -> bytes:
        """The page of ``GET /metrics``."""
        return generate_latest(self.registry)

    def gauge(self, name: str, help_text: str, read: Callable[[], float]) -> None:
        """Registers a gauge that is read when the page is."""
        Gauge(name, help_text, registry=self.registry).set_function(read)

    def read_counter(self, name: str, help_text: str, read: Callable[[], float]) -> None:
        """Registers a counter that is read when the page is."""
        self.registry.register(_ReadCounter(name, help_text, read))

    def read_counts(self, name: str, help_text: str, read: Callable[[], Mapping[str, float]]) -> None:
        """The same for a count of each reason."""
        self.registry.register(_ReadCounts(name, help_text, read))

    def counter(self, name: str, help_text: str) -> Counter:
        """A new counter of this registry."""
        return Counter(name, help_text, registry=self.registry)

    def histogram(self, name: str, help_text: str, buckets: tuple[float, ...] = SECONDS) -> Histogram:
        """A new histogram of this registry."""
        return Histogram(name, help_text, buckets=buckets, registry=self.registry)


class _ReadCounter(Collector):
    """A counter that somebody else keeps."""

    def __init__(self, name: str, help_text: str, read: Callable[[], float]) -> None:
        self._name, self._help_text, self._read = name, help_text, read

    def collect(self) -> Iterator[CounterMetricFamily]:
        """The one family."""
        yield CounterMetricFamily(self._name, self._help_text, value=self._read())


class _ReadCounts(Collector):
    """Counters by reason that somebody else keeps."""

    def __init__(self, name: str, help_text: str, read: Callable[[], Mapping[str, float]]) -> None:
        self._name, self._help_text, self._read = name, help_text, read

    def collect(self) -> Iterator[CounterMetricFamily]:
        """The one family; a reason that never came has no line."""
        family = CounterMetricFamily(self._name, self._help_text, labels=["reason"])
        for reason, count in dict(self._read()).items():
            family.add_metric([reason], count)
        yield family


class _State(Collector):
    """Reads the server's state at the time of the scrape."""

    def __init__(self, status: Status, compile_events: Callable[[], int], attention: Callable[[], dict[str, str]]):
        self._status = status
        self._compile_events = compile_events
        self._attention = attention

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """Nothing: names are known at the scrape only."""
        return iter(())

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """The families of this scrape."""
        stage = GaugeMetricFamily("coexist_server_stage", "1 for the stage the server is in.", labels=["stage"])
        for name in STAGES:
            stage.add_metric([name], float(self._status.stage == name))
        yield stage
        parts = GaugeMetricFamily("coexist_server_start_seconds", "Time of each part of the start.", labels=["part"])
        for name, seconds in list(self._status.parts.items()):
            if seconds is not None:
                parts.add_metric([name], seconds)
        yield parts
        yield self._plain("coexist_server_compile_events", "Compilations in this process.", self._compile_events())
        yield self._plain("coexist_server_bytes_read", "Bytes of weights read.", self._status.bytes_read)
        yield self._plain("coexist_server_in_flight", "Requests in flight.", self._status.in_flight)
        labels = self._attention()
        attention = GaugeMetricFamily("coexist_server_attention_info", "Attention path used.", labels=list(labels))
        attention.add_metric(list(labels.values()), 1)
        yield attention

    @staticmethod
    def _plain(name: str, help_text: str, value: float) -> GaugeMetricFamily:
        return GaugeMetricFamily(name, help_text, value=value)
