from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.build import trtllm_bench
from toolkit.assemble import adopted, engines, paths
from toolkit.build.trtllm_adopt import Surroundings, adopt
from toolkit.build.trtllm_machine import BuildGpu, Machine
from toolkit.config import load
from toolkit.errors import ManyFaultsError, ToolkitError
from toolkit.store import Store

H100 = BuildGpu(0, "GPU-aa", "NVIDIA H100", "9.0", 80 << 30)
L40 = BuildGpu(0, "GPU-bb", "NVIDIA L40", "8.9", 48 << 30)
PLUGINS = {"context_fmha": True, "use_paged_context_fmha": True, "tokens_per_block": 64}


class Bench:
    """A store with one adopted engine, and an environment with TensorRT-LLM 0.21.0."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = Store(folder / "home")
        self.environment = trtllm_bench.make(folder)
        (folder / "llama").mkdir()
        (folder / "llama" / "config.json").write_text("{}")
        self.engine = self.adopt("their-engine")

    def adopt(self, name: str, content: bytes = b"engine", **plugins: Any) -> Any:
        folder = self.folder / f"made-{name}-{len(list(self.folder.iterdir()))}"
        folder.mkdir()
        build = {"max_batch_size": 8, "max_input_len": 512, "max_seq_len": 1024, "max_num_tokens": 256}
        config = {
            "version": "0.21.0",
            "pretrained_config": {"architecture": "LlamaForCausalLM", "dtype": "bfloat16"},
            "build_config": {**build, "plugin_config": {**PLUGINS, **plugins}, "kv_cache_type": "PAGED"},
        }
        (folder / "config.json").write_text(json.dumps(config))
        (folder / "rank0.engine").write_bytes(content)
        return adopt(folder, self.store, Surroundings(), name)[0]

    def deployment(self, named: str = "their-engine", service: str = "gpus: 1", more: str = "") -> Any:
        file = self.folder / "deployment.yaml"
        file.write_text(
            "version: 1\nname: two\n"
            f"environments: {{trtllm: {{python: {self.environment.python}}}}}\n"
            f"engines:\n  llm: {{adopted: {named}, environment: trtllm{more}}}\n"
            f"services:\n  llm: {{runtime: trtllm, engine: llm, environment: trtllm, {service}}}\n"
        )
        return load.deployment(file)

    def found(self, **keywords: str) -> paths.Paths:
        return paths.find(self.deployment(**keywords), self.store)

    def ensure(self, gpu: BuildGpu = H100, **keywords: str) -> Any:
        deployment = self.deployment(**keywords)
        (wanted,) = engines.of_deployment(deployment, paths.find(deployment, self.store)).values()
        described = engines.describe(wanted, self.store, lambda: Machine((gpu,)))
        made = engines.ensure(wanted, self.store, lambda line: None, lambda: Machine((gpu,)), force=True)
        assert made == described
        return made

    def refused(self, gpu: BuildGpu = H100, **keywords: str) -> ToolkitError:
        with pytest.raises(ToolkitError) as caught:
            self.ensure(gpu, **keywords)
        assert "deployment.yaml:5 engines.llm.adopted" in str(caught.value.where)
        return caught.value


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.mark.parametrize("digits", [8, 16, 64])
def test_an_adopted_engine_is_served_as_it_is_by_name_or_fingerprint(bench: Bench, digits: int) -> None:
    for named in ("their-engine", f'"{bench.engine.fingerprint[:digits]}"'):
        made = bench.ensure(named=named)
        assert (made.path, made.reused, made.builder) == (bench.engine.path, True, "trtllm")
        assert made.info["limits"]["max_input_len"] == 512
        assert "adopted: somebody else built it" in made.notes


def test_what_it_was_built_for_stands_for_its_recipe(bench: Bench) -> None:
    found = bench.found(more=", model: llama")
    recipe = found.engines["llm"].recipe.model
    assert (recipe.name, recipe.builder, recipe.fmha, recipe.dtype) == ("their-engine", "trtllm", "enable", "bfloat16")
    assert (recipe.limits.max_input_len, recipe.limits.max_num_tokens) == (512, 256)
    assert (recipe.kv_cache.type, recipe.kv_cache.tokens_per_block, recipe.kv_cache.reuse) == ("paged", 64, True)


def test_tokenizer_and_right_answers_come_from_the_model_that_is_named_with_it(bench: Bench) -> None:
    deployment = bench.deployment(more=", model: llama")
    found = paths.find(deployment, bench.store)
    assert found.source("llm", deployment.model.services["llm"]) == bench.folder / "llama"


@pytest.mark.parametrize(
    ("gpu", "service", "release", "what"),
    [
        (H100, "gpus: 1", "0.20.0", "TensorRT-LLM 0.21.0 built it, and 0.20.0 is to serve it"),
        (H100, "gpus: 2", "0.21.0", "it needs 1 GPUs"),
        (H100, "gpus: 1", "1.3.0", "TensorRT-LLM 1.3.0 serves no engines"),
    ],
)
def test_what_does_not_fit_is_told_before_anything_starts(
    bench: Bench, gpu: BuildGpu, service: str, release: str, what: str
) -> None:
    bench.environment.install(release)
    error = bench.refused(gpu, service=service)
    assert error.code == "engine_refused"
    assert what in error.what


def test_a_flag_that_needs_paged_context_attention_is_refused_on_an_engine_without_it(bench: Bench) -> None:
    bench.adopt("plain", use_paged_context_fmha=False)
    error = bench.refused(named="plain", service="gpus: 1, options: {enable_chunked_prefill: true}")
    assert "built without paged context attention" in error.what


def test_an_engine_of_our_own_is_known_by_its_gpu(bench: Bench) -> None:
    bench.environment.checkpoint()
    built = bench.environment.ensure(machine=Machine((H100,)))
    assert built.path.parent == bench.store.engines
    assert bench.ensure(named="tiny").path == built.path
    assert "the GPUs here have 8.9" in bench.refused(L40, named="tiny").what


def test_an_engine_whose_files_were_touched_is_damaged(bench: Bench) -> None:
    (bench.engine.path / "rank0.engine").write_bytes(b"other engine")
    assert bench.refused().code == "engine_damaged"


def test_a_name_that_is_none_or_of_several_is_told_with_the_next_step(bench: Bench) -> None:
    assert "Did you mean 'their-engine'" in str(faults(bench, named="their-engin"))
    assert "coexist engines adopt DIR" in str(faults(bench, named="zzz"))
    bench.adopt("their-engine", b"another")
    assert "2 engines are named 'their-engine'" in str(faults(bench))


def faults(bench: Bench, **keywords: str) -> ManyFaultsError:
    with pytest.raises(ManyFaultsError) as caught:
        bench.found(**keywords)
    return caught.value


def test_an_engine_of_another_builder_is_not_adopted(bench: Bench) -> None:
    entry = bench.store.ensure("torch-one", "f" * 64, lambda folder: {"builder": "torch", "engine": {}})
    with pytest.raises(ToolkitError) as caught:
        adopted.find(bench.store, entry.name, "here")
    assert "not TensorRT-LLM's" in caught.value.what


def test_a_plan_for_another_machine_reads_no_store(bench: Bench) -> None:
    deployment = bench.deployment(named="somewhere-else")
    assert paths.as_written(deployment).engines["llm"].recipe.model.name == "somewhere-else"


@pytest.mark.parametrize(
    ("use", "what"),
    [
        ("{}", "either 'recipe' (a file) or 'adopted'"),
        ("{recipe: a.yaml, adopted: b}", "either 'recipe' (a file) or 'adopted'"),
        ("{recipe: a.yaml, model: m}", "'model' goes with 'adopted'"),
        ("{adopted: b, environment: nowhere}", "no environment is named 'nowhere'"),
    ],
)
def test_an_engine_has_one_source(tmp_path: Path, use: str, what: str) -> None:
    file = tmp_path / "deployment.yaml"
    file.write_text(
        f"version: 1\nname: two\nengines: {{llm: {use}}}\nservices: {{a: {{runtime: torch, engine: llm}}}}\n"
    )
    with pytest.raises(ManyFaultsError) as caught:
        load.deployment(file)
    assert what in str(caught.value)
