"""Starts as OpenTelemetry spans, sent to a small real receiver."""

from __future__ import annotations

import builtins
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web

from tests.ports import free_port
from tests.supervise.conftest import supervise, tiny
from toolkit.supervise import stage_parts, telemetry
from toolkit.supervise.lifecycle import Instance, StageTime, State
from toolkit.warm.model import Memory, Proof, StageReport

trace_service = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
pytest.importorskip("opentelemetry.exporter.otlp.proto.http.trace_exporter")


class Receiver:
    """An OTLP/HTTP endpoint; ``spans`` are what it was sent."""

    def __init__(self) -> None:
        self.endpoint = ""
        self.spans: list[Any] = []
        self.resources: list[dict[str, str]] = []

    async def traces(self, request: web.Request) -> web.Response:
        import gzip  # noqa: PLC0415

        body = await request.read()
        body = gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body
        told = trace_service.ExportTraceServiceRequest.FromString(body)
        for each in told.resource_spans:
            self.resources.append({pair.key: pair.value.string_value for pair in each.resource.attributes})
            self.spans += [span for scope in each.scope_spans for span in scope.spans]
        return web.Response(body=b"", content_type="application/x-protobuf")

    def tree(self) -> dict[str, str]:
        """Each span's name to its parent's."""
        names = {span.span_id: span.name for span in self.spans}
        return {span.name: names.get(span.parent_span_id, "") for span in self.spans}

    def named(self, name: str) -> Any:
        return next(span for span in self.spans if span.name == name)


@pytest_asyncio.fixture
async def receiver(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Receiver]:
    found = Receiver()
    app = web.Application()
    app.router.add_post("/v1/traces", found.traces)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    found.endpoint = f"http://127.0.0.1:{runner.addresses[0][1]}"
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", found.endpoint)  # the exporter reads it itself
    yield found
    await runner.cleanup()


async def test_a_start_is_a_span_with_its_stages_and_their_parts_inside(receiver: Receiver, state_dir: Path) -> None:
    environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint}
    await supervise(state_dir, tiny("web"), environ=environ).run("ready", 30.0)
    tree = receiver.tree()
    assert tree["start web"] == ""
    assert {name for name, parent in tree.items() if parent == "start web"} == {"INIT", "PRELOAD", "PRIME", "SERVING"}
    assert {name for name, parent in tree.items() if parent == "PRIME"} == {"compile", "canary", "proof"}
    prime, whole = receiver.named("PRIME"), receiver.named("start web")
    assert whole.start_time_unix_nano <= prime.start_time_unix_nano < prime.end_time_unix_nano
    assert {pair.key for pair in whole.attributes} >= {"coexist.service", "coexist.attempt"}
    assert receiver.resources[0]["service.name"] == "coexist"
    assert receiver.resources[0]["coexist.deployment"] == "tiny"


async def test_a_start_that_failed_says_why(receiver: Receiver, state_dir: Path) -> None:
    environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint}
    await supervise(state_dir, tiny("web", "1:exit-early"), environ=environ).run("ready", 30.0)
    failed = [span for span in receiver.spans if span.status.code == 2]
    assert [span.name for span in failed] == ["start web"]
    assert "no such weights" in failed[0].status.message


async def test_an_endpoint_that_does_not_answer_stops_nothing(state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "_LAST_SPANS_S", 0.2)
    endpoint = f"http://127.0.0.1:{free_port()}"
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint}
    document = await supervise(state_dir, tiny("web"), environ=environ).run("ready", 30.0)
    assert document["ready"]


async def test_missing_packages_are_one_note_and_no_failure(state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *given: Any, **more: Any) -> Any:
        if name.startswith("opentelemetry"):
            raise ImportError(name)
        return real(name, *given, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    supervisor = supervise(state_dir, tiny("web"), environ={"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"})
    assert (await supervisor.run("ready", 30.0))["ready"]
    assert [each["text"] for each in supervisor._journal.recent if each.get("text") == telemetry.MISSING] != []
    assert len([each for each in supervisor._journal.recent if each.get("text") == telemetry.MISSING]) == 1


@pytest.mark.parametrize("environ", [{}, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_SDK_DISABLED": "true"}])
def test_without_an_endpoint_nothing_is_imported_and_nothing_sent(environ: dict[str, str]) -> None:
    found = telemetry.find(environ, "d", lambda at_s: at_s, lambda _: pytest.fail("no note"))
    assert isinstance(found, telemetry.Nowhere)


def test_parts_are_laid_end_to_end_inside_their_stage() -> None:
    report = StageReport({"context": 1.0, "weights": 2.0, "kv_cache": None}, gpu_bytes={"weights": 7})
    report = stage_parts.with_memory(report, Memory(100, 10))
    proof = Proof(None, (), 5.0, 6.0, None, (), 0.0, parts={"compile": 4.0})
    stages = (StageTime(State.PRELOAD, 10.0, 14.0), StageTime(State.PRIME, 14.0, 17.0))
    whole = telemetry.of_attempt(Instance("llm", stages=stages, report=report, proof=proof), 17.0)
    preload, prime = whole.children
    assert [(part.name, part.start_s, part.end_s) for part in preload.children] == [
        ("context", 10.0, 11.0),
        ("weights", 11.0, 13.0),
    ]
    assert preload.attributes == {"coexist.host_bytes": 100, "coexist.gpu_bytes": 10}
    assert [part.attributes for part in preload.children] == [{"coexist.gpu_bytes": 3}, {"coexist.gpu_bytes": 7}]
    assert prime.children[0].end_s == 17.0
