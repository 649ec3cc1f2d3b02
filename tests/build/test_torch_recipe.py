from __future__ import annotations

from typing import Any

import pytest

from tests.build.conftest import Bench
from tests.build.fake_python import FACTS
from toolkit.build.torch_recipe import fingerprint_parts
from toolkit.errors import ToolkitError
from toolkit.store import fingerprint

GPU = {"torch_cuda": "13.0", "compute_capability": "9.0"}


def parts(bench: Bench, text: str = "", device: str = "cpu", **facts: Any) -> str:
    recipe = bench.recipe(text).model
    return fingerprint(fingerprint_parts(recipe, {"config.json": "ab"}, {**FACTS, **facts}, device))


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("fmha: disable\n", {}),
        ("dtype: float32\n", {}),
        ("limits: {max_seq_len: 4096}\n", {}),
        ("canary: {prompt: other}\n", {}),
        ("options: {inductor: {freezing: true}}\n", {}),
        ("", {"packages": {**FACTS["packages"], "torch": "2.0"}}),
        ("", {"cpu_features": ["avx2", "amx_bf16"]}),
        ("", {"machine": "aarch64"}),
    ],
)
def test_whatever_changes_the_engine_changes_the_fingerprint(text: str, facts: dict[str, Any], bench: Bench) -> None:
    assert parts(bench, text, **facts) != parts(bench)


def test_a_gpu_counts_only_for_an_engine_on_it(bench: Bench) -> None:
    assert parts(bench, **GPU) == parts(bench)
    assert parts(bench, device="cuda", **GPU) != parts(bench, device="cuda", **{**GPU, "compute_capability": "10.0"})


def test_saying_the_device_that_auto_would_take_changes_nothing(bench: Bench) -> None:
    assert parts(bench, "options: {device: cpu}\n") == parts(bench)


@pytest.mark.parametrize(
    ("text", "facts", "expected"),
    [("", {}, "cpu"), ("", GPU, "cuda"), ("options: {device: cpu}\n", GPU, "cpu")],
)
def test_the_device_is_the_environments_unless_the_recipe_says(
    text: str, facts: dict[str, Any], expected: str, bench: Bench
) -> None:
    bench.scenario(facts=facts)
    argv = bench.describe(text).commands[0].argv
    assert argv[argv.index("--device") + 1] == expected


def test_the_service_that_uses_the_engine_may_decide_the_device(bench: Bench) -> None:
    bench.scenario(facts=GPU)
    argv = bench.describe("options: {device: cuda}\n", device="cpu").commands[0].argv
    assert argv[argv.index("--device") + 1] == "cpu"


@pytest.mark.parametrize("facts", [{"torch_cuda": "13.0"}, {"compute_capability": "9.0"}])
def test_cuda_that_is_not_there_is_refused(facts: dict[str, Any], bench: Bench) -> None:
    bench.scenario(facts=facts)
    with pytest.raises(ToolkitError, match="cannot build for cuda") as caught:
        bench.ensure("options: {device: cuda}\n")
    assert "options.device" in str(caught.value.where)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("tp_size: 2\n", "tp_size"),
        ("options: {devise: cpu}\n", "no option 'devise'"),
        ("options: {device: tpu}\n", "'tpu' is no device"),
        ("options: {inductor: fast}\n", "holds no settings"),
        ("fmha: disable\nkv_cache: {reuse: true}\n", "not reused"),
    ],
)
def test_what_this_builder_does_not_offer_is_refused_with_its_line(text: str, what: str, bench: Bench) -> None:
    with pytest.raises(ToolkitError, match=what) as caught:
        bench.ensure(text)
    assert "recipe.yaml:" in str(caught.value.where)


def test_an_unknown_option_names_the_nearest(bench: Bench) -> None:
    with pytest.raises(ToolkitError, match="Did you mean 'device'"):
        bench.ensure("options: {devise: cpu}\n")


def test_a_missing_model_folder_says_where_it_was_looked_for(bench: Bench) -> None:
    (bench.folder / "model").rename(bench.folder / "elsewhere")
    with pytest.raises(ToolkitError, match="does not exist") as caught:
        bench.ensure()
    assert "recipe.yaml:4" in str(caught.value.where)


def test_missing_packages_are_named_with_the_command_that_installs_them(bench: Bench) -> None:
    bench.scenario(facts={"packages": {"torch": None, "safetensors": "1", "tokenizers": "1", "numpy": None}})
    with pytest.raises(ToolkitError, match="no torch, numpy") as caught:
        bench.ensure()
    assert "-m pip install torch numpy" in str(caught.value.hint)


def test_an_interpreter_that_is_not_there_is_a_clear_error(bench: Bench) -> None:
    bench.python.unlink()
    with pytest.raises(ToolkitError, match="cannot be asked"):
        bench.ensure()


def test_an_interpreter_that_fails_shows_its_last_words(bench: Bench) -> None:
    bench.python.write_text("#!/bin/sh\necho 'SyntaxError: too old' >&2; exit 1\n")
    with pytest.raises(ToolkitError, match="SyntaxError: too old"):
        bench.ensure()
