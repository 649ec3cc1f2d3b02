"""A secret in a deployment's ``env:`` is in no answer of the command line and in no file that coexist writes."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.deployments import Node
from tests.ports import free_port

ENV = {
    "HF_TOKEN": "planted-token",
    "MY_SECRET": "planted-secret",
    "MISTRAL_KEY": "planted-key",
    "DATABASE": "postgres://me:planted-password@db/x",
    "HARMLESS": "shown",
}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    yield made
    made.end()


def test_a_plan_shows_names_and_harmless_values_alone(node: Node) -> None:
    file = node.deployment("secrets", free_port(), env=ENV)
    code, document = node.run("plan", file)
    assert code == 0
    env = document["services"][0]["env"]
    assert {name: env[name] for name in ENV} == {
        **dict.fromkeys(("HF_TOKEN", "MY_SECRET", "MISTRAL_KEY"), "***"),
        "DATABASE": "postgres://***@db/x",
        "HARMLESS": "shown",
    }
    assert env["COEXIST_TOKEN"] == "***"
    assert "planted" not in json.dumps(document)


def test_a_deployment_that_runs_tells_nobody_its_secrets(node: Node) -> None:
    file = node.deployment("secrets", free_port(), env=ENV)
    _, up = node.up(file)
    assert up["ready"]
    answers = [up, node.run("status")[1]]
    bundle = node.folder / "report.tar.gz"
    node.run("diagnose", "web", "--bundle", bundle)
    with tarfile.open(bundle) as archive:
        answers += [archive.extractfile(name).read().decode() for name in archive.getnames()]  # type: ignore[union-attr]
    assert "planted" not in str(answers)
    own = [path for path in node.folder.rglob("*") if path.is_file() and path != file and path.suffix != ".gz"]
    assert len(own) > 4
    assert [path for path in own if b"planted" in path.read_bytes()] == []


def test_a_failed_start_quotes_its_program_without_secrets(node: Node) -> None:
    port = free_port()
    argv = json.loads(node.deployment("x", port).read_text())["services"]["web"]["argv"]
    restart = {"max_restarts": 0, "window": "60s"}
    file = node.deployment("secrets", port, env=ENV, argv=[*argv, "tell-secrets"], restart=restart)
    code, document = node.run("up", file)
    assert code == 1
    assert "refused: ***" in json.dumps(document)
    assert "planted" not in json.dumps(document)
    folder = node.folder / "home" / "state" / "secrets"
    written = [path for path in folder.rglob("*") if path.is_file() and path.parent.name != "logs"]
    assert [path for path in written if b"planted" in path.read_bytes()] == []
