"""The description of both servers: whole, valid, and what they do when it is taken at its word."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from schemathesis import checks

from tests.serve.fakes import Client, FakeEngine, engine_serving, frontend_serving, in_thread
from tests.serve.small_models import HIDDEN, WORDS, write_cross_encoder
from toolkit.serve import openapi

Serving = Callable[[Path], "contextlib.AbstractAsyncContextManager[Client]"]
SERVERS: dict[str, Serving] = {
    "engine": lambda folder: engine_serving(FakeEngine(), folder),
    "embeddings": frontend_serving,
    "cross-encoder": lambda folder: frontend_serving(write_cross_encoder(folder)),
}
BODIES = {
    "engine": ["/v1/completions", "/v1/chat/completions"],
    "embeddings": ["/v1/embeddings", "/v1/rerank"],
    "cross-encoder": ["/v1/embeddings", "/v1/rerank"],
}
CHECKS = [
    checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
    checks.negative_data_rejection,
]
EXAMPLES = 30
FUZZ = settings(
    max_examples=EXAMPLES,
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.parametrize("name", SERVERS)
async def test_every_route_is_described_and_nothing_else_is(tmp_path: Path, name: str) -> None:
    async with SERVERS[name](tmp_path) as client:
        _, document = await client.get("/openapi.json")
        routes = {
            (route.method.lower(), route.resource.canonical)
            for route in client.server.app().router.routes()
            if route.resource is not None and route.method != "HEAD"
        }
    described = {(method, path) for path, methods in document["paths"].items() for method in methods}
    assert described == routes
    assert set(BODIES[name]) < set(document["paths"])


@pytest.mark.parametrize("name", SERVERS)
async def test_the_description_is_valid_and_knows_the_model_s_limits(tmp_path: Path, name: str) -> None:
    async with SERVERS[name](tmp_path) as client:
        _, document = await client.get("/openapi.json")
    assert document["openapi"] == "3.1.0"
    for schema in schemas(document):
        jsonschema_rs.meta.validate({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema})
    text = str(document["paths"][BODIES[name][0]])
    assert "'maximum': " in text
    if name != "engine":
        assert f"'maximum': {len(WORDS) - 1}" in text
        assert f"'maximum': {HIDDEN}" in text


async def test_the_description_is_there_before_the_model_is(tmp_path: Path) -> None:
    gate = threading.Event()
    async with engine_serving(FakeEngine(), tmp_path, register=False, load_gate=gate) as client:
        status, before = await client.get("/openapi.json")
        gate.set()
        await client.loaded()
        _, after = await client.get("/openapi.json")
    assert status == 200
    assert set(before["paths"]) == set(after["paths"])
    assert "'maximum': 256" not in str(before)
    assert "'maximum': 256" in str(after)


def schemas(node: Any) -> list[dict[str, Any]]:
    """Every schema below a ``schema`` key."""
    if isinstance(node, list):
        return [found for item in node for found in schemas(item)]
    if not isinstance(node, dict):
        return []
    own = [node["schema"]] if isinstance(node.get("schema"), dict) else []
    return own + [found for value in node.values() for found in schemas(value)]


def test_operations_have_names_of_their_own() -> None:
    document = openapi.document("x", openapi.SHARED)
    names = [operation["operationId"] for methods in document["paths"].values() for operation in methods.values()]
    assert len(set(names)) == len(names) == len(openapi.SHARED)


@pytest.mark.parametrize("name", SERVERS)
def test_fuzzed_by_its_description_no_server_fails_or_answers_otherwise(tmp_path: Path, name: str) -> None:
    more = only_the_prompt_may_be_refused if name == "engine" else checks.positive_data_acceptance
    with in_thread(lambda: SERVERS[name](tmp_path)) as url:
        schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
        for found in schema.get_all_operations():
            fuzz(found.ok(), [*CHECKS, more])


@pytest.mark.parametrize("path", BODIES["engine"])
def test_a_stream_is_what_its_description_says(tmp_path: Path, path: str) -> None:
    with in_thread(lambda: SERVERS["engine"](tmp_path)) as url:
        operation = schemathesis.openapi.from_url(f"{url}/openapi.json")[path]["POST"]
        asked = {"stream": True, "prompt": "hello", "messages": [{"role": "user", "content": "hello"}]}
        response = operation.Case(body=asked, media_type="application/json").call_and_validate(checks=CHECKS)
    assert response.headers["content-type"][0].startswith("text/event-stream")


def only_the_prompt_may_be_refused(_: Any, response: schemathesis.Response, case: schemathesis.Case) -> None:
    """Prompts can be too long or empty in tokens, and templates refuse messages: no schema tells that."""
    positive = case.meta is not None and case.meta.generation.mode.is_positive
    if positive and response.status_code == 400:
        assert response.json()["error"]["param"] in ("prompt", "messages", "max_tokens")


def fuzz(operation: schemathesis.APIOperation, wanted: list[Any]) -> None:
    modes = [schemathesis.GenerationMode.POSITIVE]
    if operation.body:
        modes.append(schemathesis.GenerationMode.NEGATIVE)

    @seed(7)
    @settings(FUZZ, max_examples=EXAMPLES if operation.body else 1)
    @given(case=st.one_of(*(operation.as_strategy(generation_mode=mode) for mode in modes)))
    def ask(case: schemathesis.Case) -> None:
        positive = case.meta is not None and case.meta.generation.mode.is_positive
        if positive and isinstance(case.body, dict):
            # A made-up model is not found, and what lies behind would not be reached.
            case.body.pop("model", None)
        case.call_and_validate(checks=wanted, timeout=30)

    ask()
