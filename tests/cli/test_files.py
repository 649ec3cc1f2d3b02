from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from toolkit.assemble import first
from toolkit.cli.root import root
from toolkit.home import Home
from toolkit.store import Store

ROOT = Path(__file__).resolve().parents[2]


def test_init_writes_a_deployment_that_loads_and_never_overwrites(coexist, tmp_path):
    file = tmp_path / "mine.yaml"
    document = coexist("init", file, "--json").document
    assert (document["schema"], document["file"]) == (1, str(file))
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


def offered(*words: str) -> list[str]:
    return [
        each.value for each in ShellComplete(root, {}, "coexist", "_COEXIST_COMPLETE").get_completions([*words], "")
    ]


@pytest.mark.parametrize(
    ("file", "names"), [("configs/two-gpus.yaml", ["llm"]), ("engines/llama-3.1-8b.yaml", ["llama-3.1-8b"])]
)
def test_engines_of_the_file_are_offered(file, names):
    assert offered("build", str(ROOT / file), "--engine") == names


def test_without_a_file_the_engines_of_the_store_are_offered(tmp_path, monkeypatch):
    monkeypatch.setenv("COEXIST_HOME", str(tmp_path))
    store = Store(Home.find().root)
    store.ensure("mine", "0" * 16, lambda folder: {"size": (folder / "engine").write_text("x")})
    assert offered("build", "--engine") == offered("engines", "verify") == ["mine"]


def test_a_file_that_is_wrong_offers_nothing(tmp_path):
    file = tmp_path / "wrong.yaml"
    file.write_text("services: [")
    assert offered("build", str(file), "--engine") == []


def test_a_first_deployment_says_what_is_not_in_place(coexist, tmp_path, monkeypatch):
    monkeypatch.setattr(first, "CHECKOUT", tmp_path / "none")
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "away" / "mine.yaml"
    file.parent.mkdir()
    answer = coexist("init", file)
    assert answer.code == 0
    assert "It names what is not in place yet." in answer.err
    assert "engines.llm.recipe: 'engines/" in answer.err
    assert "services.embed.model: 'models/all-minilm-l6-v2' does not exist" in answer.err
