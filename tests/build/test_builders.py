from __future__ import annotations

import pytest

from tests.build.conftest import Bench
from tests.build.trtllm_bench import TrtllmBench
from toolkit.build import describe, ensure
from toolkit.config import load
from toolkit.errors import ToolkitError


def test_a_recipe_goes_to_the_builder_it_names(trtllm: TrtllmBench) -> None:
    built = ensure(trtllm.recipe(), trtllm.python, trtllm.store, environ=trtllm.environ)
    assert built.builder == "trtllm"
    assert built.document()["fmha"]["built"] == "enable"


def test_an_environment_without_tensorrt_llm_says_so_and_how_to_look_anyway(bench: Bench) -> None:
    path = bench.folder / "recipe.yaml"
    path.write_text("version: 1\nname: tiny\nbuilder: trtllm\ncheckpoint: model\n")
    with pytest.raises(ToolkitError, match=r"no TensorRT-LLM.*--trtllm-version"):
        describe(load.recipe(path), bench.python, bench.store, environ={})


def test_the_machine_is_not_asked_for_a_release_that_is_not_installed(trtllm: TrtllmBench) -> None:
    def machine() -> None:
        pytest.fail("was asked")

    told = describe(trtllm.recipe(), trtllm.python, trtllm.store, trtllm_version="1.2.0", machine=machine)
    assert told.builder == "trtllm"
