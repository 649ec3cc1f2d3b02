"""The need of services whose program loads a model as it is, and the budget that a plan makes of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.plan.machines import gpu, host
from toolkit.assemble import needs, paths
from toolkit.config import load
from toolkit.plan import make
from toolkit.units import GIB

CONFIG = {
    "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 8192, "torch_dtype": "bfloat16",
}  # fmt: skip
KV_BYTES_PER_TOKEN = 2 * 32 * 8 * 128 * 2


@pytest.fixture
def loaded(tmp_path: Path):
    """A deployment of one service, whose model takes 16 GiB."""
    model = tmp_path / "llama"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(CONFIG))
    with (model / "model.safetensors").open("wb") as file:
        file.truncate(16 * GIB)  # a hole

    def make_it(runtime: str, **keys: Any) -> load.LoadedDeployment:
        service = {"runtime": runtime, "model": str(model), "gpus": 1, **keys}
        file = tmp_path / "deploy.yaml"
        file.write_text(json.dumps({"version": 1, "name": "one", "services": {"llm": service}}))
        return load.deployment(file)

    return make_it


def need(loaded_deployment: load.LoadedDeployment):
    return needs.read(loaded_deployment.model, paths.find(loaded_deployment))["llm"]


@pytest.mark.parametrize(
    ("runtime", "length", "requests", "eager"),
    [
        ("vllm", "max_model_len", "max_num_seqs", "enforce_eager"),
        ("sglang", "context_length", "max_running_requests", "disable_cuda_graph"),
    ],
)
def test_options_bound_the_need(loaded: Any, runtime: str, length: str, requests: str, eager: str):
    found = need(loaded(runtime))
    assert (found.weights_bytes, found.kv_bytes_per_token) == (16 * GIB, KV_BYTES_PER_TOKEN)
    assert (found.max_seq_len, found.graph_pool_bytes) == (8192, 3 * GIB)
    bounded = need(loaded(runtime, options={length: 2048, requests: 4, eager: True}))
    assert (bounded.max_seq_len, bounded.max_batch_size, bounded.graph_pool_bytes) == (2048, 4, 0)
    assert bounded.most_bytes == bounded.fixed_bytes + 4 * 2048 * KV_BYTES_PER_TOKEN


def test_an_8_bit_cache_takes_half_and_ranks_share_the_weights(loaded: Any):
    halved = need(loaded("vllm", gpus=2, tp_size=2, options={"kv_cache_dtype": "fp8"}))
    assert halved.weights_bytes == 8 * GIB
    assert halved.kv_bytes_per_token == KV_BYTES_PER_TOKEN // 4


def test_half_is_an_element_type_as_pytorch_knows_it(loaded: Any):
    assert need(loaded("sglang", options={"dtype": "half"})).weights_bytes == 16 * GIB
    assert need(loaded("sglang", options={"dtype": "float"})).weights_bytes == 32 * GIB


def test_transformers_is_counted_for_requests_of_a_stated_length(loaded: Any):
    found = need(loaded("transformers"))
    assert (found.max_seq_len, found.max_batch_size, found.graph_pool_bytes) == (4096, 1, 0)
    assert found.least_bytes == found.most_bytes


@pytest.mark.parametrize("runtime", ["vllm", "sglang", "transformers"])
def test_a_budget_that_was_left_out_is_derived(loaded: Any, runtime: str):
    deployment = loaded(runtime)
    plan = make(deployment.model, host(gpu(0)), needs.read(deployment.model, paths.find(deployment)))
    (device,) = plan.services[0].devices
    assert device.budget_bytes is not None
    assert need(deployment).least_bytes <= device.budget_bytes < 80 * GIB
    assert plan.services[0].weights_bytes == 16 * GIB


def test_services_without_a_gpu_are_counted_in_main_memory(loaded: Any):
    deployment = loaded("transformers", gpus=0)
    found = needs.host_bytes(deployment.model, paths.find(deployment))
    assert found["llm"] > 16 * GIB
