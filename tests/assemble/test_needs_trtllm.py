from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from toolkit.assemble import needs, paths
from toolkit.config import load
from toolkit.plan import Need
from toolkit.units import GIB

# 8 layers of 4 KV heads of 64: 2 * 8 * 4 * 64 numbers a token.
SIZES = {"num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 4, "hidden_size": 512,
         "intermediate_size": 1024, "vocab_size": 1000}  # fmt: skip
NUMBERS = 2 * 8 * 4 * 64


def need(folder: Path, recipe: dict[str, Any] | None = None, **service: Any) -> Need | None:
    (folder / "python").write_text("#!/bin/sh\n")
    (folder / "python").chmod(0o755)
    told = {"runtime": "trtllm", "environment": "env", "gpus": service.get("tp_size", 1), **service}
    engines = {}
    if recipe is not None:
        whole = {"version": 1, "name": "llm", "builder": "trtllm", "checkpoint": "ckpt", **recipe}
        (folder / "recipe.yaml").write_text(json.dumps(whole))
        engines, told = {"llm": {"recipe": "recipe.yaml"}}, {**told, "engine": "llm"}
    document = {"version": 1, "name": "one", "environments": {"env": {"python": "python"}}, "engines": engines,
                "services": {"llm": told}}  # fmt: skip
    (folder / "deploy.yaml").write_text(json.dumps(document))
    loaded = load.deployment(folder / "deploy.yaml")
    return needs.read(loaded.model, paths.find(loaded)).get("llm")


def checkpoint(folder: Path, **config: Any) -> None:
    (folder / "ckpt").mkdir()
    mapping = {"world_size": 2, "tp_size": 2, "pp_size": 1}
    told = {"architecture": "LlamaForCausalLM", "dtype": "float16", "mapping": mapping, **SIZES, **config}
    (folder / "ckpt" / "config.json").write_text(json.dumps(told))
    for rank in range(2):
        (folder / "ckpt" / f"rank{rank}.safetensors").write_bytes(b"\0" * 1000)


def model(folder: Path) -> str:
    (folder / "model").mkdir()
    told = {**SIZES, "max_position_embeddings": 4096, "torch_dtype": "bfloat16"}
    (folder / "model" / "config.json").write_text(json.dumps(told))
    (folder / "model" / "model.safetensors").write_bytes(b"\0" * 2000)
    return "model"


def test_a_checkpoint_alone_tells_the_need_of_its_engine(tmp_path: Path) -> None:
    checkpoint(tmp_path)
    found = need(tmp_path, {"limits": {"max_seq_len": 2048}}, tp_size=2)
    assert found is not None
    assert found.weights_bytes == 1000
    assert found.kv_bytes_per_token == NUMBERS * 2 // 2
    assert (found.max_seq_len, found.tokens_per_block) == (2048, 32)


@pytest.mark.parametrize("algo", ["FP8", "INT8"])
def test_the_checkpoint_decides_over_the_type_of_the_kv_cache(tmp_path: Path, algo: str) -> None:
    checkpoint(tmp_path, quantization={"quant_algo": "FP8", "kv_cache_quant_algo": algo})
    found = need(tmp_path, {"dtype": "bfloat16"}, tp_size=2)
    assert found is not None
    assert found.kv_bytes_per_token == NUMBERS // 2


def test_a_model_in_pytorch_mode_has_room_for_graphs_and_its_own_length(tmp_path: Path) -> None:
    found = need(tmp_path, model=model(tmp_path))
    assert found is not None
    assert (found.max_seq_len, found.max_batch_size, found.graph_pool_bytes) == (4096, 2048, 3 * GIB)
    assert found.kv_bytes_per_token == NUMBERS * 2
    options = {"max_seq_len": 1024, "max-batch-size": 4, "kv_cache_dtype": "fp8"}
    shorter = need(tmp_path, model="model", options=options)
    assert shorter is not None
    assert (shorter.max_seq_len, shorter.max_batch_size, shorter.kv_bytes_per_token) == (1024, 4, NUMBERS)


def test_blocks_of_vanilla_attention_hold_a_whole_step(tmp_path: Path) -> None:
    found = need(tmp_path, model=model(tmp_path), attention="vanilla")
    assert found is not None
    assert found.tokens_per_block == 8192
