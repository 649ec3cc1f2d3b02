from __future__ import annotations

import json

import pytest


def test_init_writes_a_deployment_that_loads_and_never_overwrites(coexist, tmp_path):
    file = tmp_path / "mine.yaml"
    assert coexist("init", file, "--json").document == {"schema": 1, "file": str(file)}
    before = file.read_text()
    assert coexist("init", file).code == 1
    assert file.read_text() == before


@pytest.mark.parametrize("kind", ["deployment", "recipe", "host"])
def test_a_schema_is_a_json_schema(coexist, kind):
    assert json.loads(coexist("schema", kind).out)["type"] == "object"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_completion_script_names_the_program(coexist, shell):
    assert "coexist" in coexist("completion", shell).out


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_completion_script_comes_as_json_too(coexist, shell):
    script = coexist("completion", shell).out.removesuffix("\n")
    assert coexist("completion", shell, "--json").document == {"schema": 1, "shell": shell, "script": script}
