"""Starts as OpenTelemetry spans: an attempt, its stages, their parts. Sent only where an OTLP endpoint is named."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from toolkit import __version__
from toolkit.supervise import stage_parts
from toolkit.supervise.lifecycle import Instance, StageTime
from toolkit.supervise.stage_parts import Part

ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
MISSING = (
    "an OTLP endpoint is set, but its packages are missing, so no spans are sent: pip install 'trtllm-coexist[otel]'"
)
_LAST_SPANS_S = 3.0
Attributes = dict[str, str | int | float]


@dataclass(frozen=True)
class Span:
    """One stretch of time, in seconds of the supervisor's clock; ``error``: why it ended badly."""

    name: str
    start_s: float
    end_s: float
    attributes: Attributes = field(default_factory=dict)
    error: str | None = None
    children: tuple[Span, ...] = ()


def of_attempt(instance: Instance, now_s: float, error: str | None = None) -> Span:
    """The start of an attempt as far as it came. Parts tell how long they took, not when: they are laid end to end."""
    stages = tuple(_stage(stage, instance, now_s) for stage in instance.stages)
    begun_s = instance.stages[0].entered_s if instance.stages else instance.since_s
    attributes: Attributes = {"coexist.service": instance.name, "coexist.attempt": instance.attempt}
    if instance.proof is not None and instance.proof.p50_ms is not None:
        attributes["coexist.first_token_p50_ms"] = instance.proof.p50_ms
    return Span(f"start {instance.name}", begun_s, now_s, attributes, error, stages)


def _stage(stage: StageTime, instance: Instance, now_s: float) -> Span:
    end_s = now_s if stage.left_s is None else stage.left_s
    mine = [part for part in stage_parts.of(instance) if part.stage is stage.state]
    whole = next((part for part in mine if part.name == stage_parts.ALL), None)
    children, at_s = [], stage.entered_s
    for part in mine:
        if part is not whole:
            took_s = min(part.seconds or 0.0, end_s - at_s)
            children.append(Span(part.name, at_s, at_s + took_s, _attributes(part)))
            at_s += took_s
    return Span(stage.state.value, stage.entered_s, end_s, _attributes(whole) if whole else {}, None, tuple(children))


def _attributes(part: Part) -> Attributes:
    told = {name: value for name, value in asdict(part).items() if name.endswith("bytes") and value is not None}
    return {f"coexist.{name}": value for name, value in told.items()}


class Telemetry(Protocol):
    """Where spans go."""

    def send(self, span: Span) -> None:
        """Hands a span over; it is sent later."""

    async def close(self) -> None:
        """Returns when what was handed over is sent, or soon after."""


class Nowhere:
    """No endpoint, or nothing to send with."""

    def send(self, span: Span) -> None:
        """Drops it."""

    async def close(self) -> None:
        """Nothing waits."""


def find(
    environ: Mapping[str, str], deployment: str, unix_s: Callable[[float], float], note: Callable[[str], None]
) -> Telemetry:
    """Where the environment wants spans; a missing package is told by ``note``, and stops nothing."""
    if not any(environ.get(name) for name in ENDPOINTS) or environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return Nowhere()
    try:
        return _Otlp(deployment, unix_s, named="OTEL_SERVICE_NAME" in environ)
    except ImportError:
        note(MISSING)
    return Nowhere()


class _Otlp:
    """The SDK's batches and its OTLP/HTTP exporter, which read the rest of the ``OTEL_`` variables themselves."""

    def __init__(self, deployment: str, unix_s: Callable[[float], float], *, named: bool) -> None:
        # An optional extra, and 0.2 s to import.
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415

        # An endpoint that does not answer is not worth a line on a person's terminal at each try.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        own = {"coexist.deployment": deployment} | ({} if named else {"service.name": "coexist"})
        self._provider = TracerProvider(resource=Resource.create(own), shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("coexist", __version__)
        self._unix_s = unix_s

    def send(self, span: Span) -> None:
        self._send(span, None)

    def _send(self, span: Span, parent: Any) -> None:
        from opentelemetry import trace  # noqa: PLC0415

        made = self._tracer.start_span(span.name, parent, start_time=self._ns(span.start_s), attributes=span.attributes)
        inside = trace.set_span_in_context(made)
        for child in span.children:
            self._send(child, inside)
        if span.error is not None:
            made.set_status(trace.StatusCode.ERROR, span.error)
        made.end(self._ns(span.end_s))

    def _ns(self, at_s: float) -> int:
        return int(self._unix_s(at_s) * 1e9)

    async def close(self) -> None:
        """An endpoint that does not answer keeps nobody: the thread that waits for it is left behind."""
        loop, sent = asyncio.get_running_loop(), asyncio.Event()

        def shut_down() -> None:
            self._provider.shutdown()
            with contextlib.suppress(RuntimeError):  # nobody waits any more
                loop.call_soon_threadsafe(sent.set)

        threading.Thread(target=shut_down, name="last-spans", daemon=True).start()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(sent.wait(), _LAST_SPANS_S)
