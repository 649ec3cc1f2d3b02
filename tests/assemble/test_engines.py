from __future__ import annotations

import sys
from pathlib import Path

import pytest

from toolkit.assemble import engines, paths
from toolkit.config import load
from toolkit.errors import ToolkitError

RECIPE = "version: 1\nname: small\nbuilder: torch\nmodel: model\n"
DEPLOYMENT = """\
version: 1
name: node
engines:
  large: {recipe: small.yaml}
  little: {recipe: small.yaml}
  spare: {recipe: small.yaml}
services:
  a: {runtime: torch, engine: large, gpus: 1}
  b: {runtime: torch, engine: little}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "small.yaml").write_text(RECIPE)
    (tmp_path / "node.yaml").write_text(DEPLOYMENT)
    return tmp_path


def test_an_engine_is_for_the_device_of_the_service_that_uses_it(folder: Path) -> None:
    deployment = load.deployment(folder / "node.yaml")
    found = engines.of_deployment(deployment, paths.find(deployment))
    assert {name: wanted.device for name, wanted in found.items()} == {"large": "cuda", "little": "cpu", "spare": None}


def test_a_recipe_alone_is_built_with_coexists_own_interpreter(folder: Path) -> None:
    (wanted,) = engines.of_file(folder / "small.yaml", None)
    assert (wanted.recipe.model.name, wanted.python, wanted.device) == ("small", Path(sys.executable), None)


def test_one_engine_of_a_deployment_can_be_named(folder: Path) -> None:
    assert [wanted.device for wanted in engines.of_file(folder / "node.yaml", "little")] == ["cpu"]


def test_an_unknown_engine_gets_the_nearest(folder: Path) -> None:
    with pytest.raises(ToolkitError, match=r"no engine 'litle'\. Did you mean 'little'") as caught:
        engines.of_file(folder / "node.yaml", "litle")
    assert caught.value.code == "unknown_engine"
