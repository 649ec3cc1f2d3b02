from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from toolkit.assemble import paths
from toolkit.config import load
from toolkit.errors import ToolkitError

ENGINE = {"version": "0.21.0", "pretrained_config": {"architecture": "LlamaForCausalLM"}, "build_config": {}}
OLD_ENGINE = {"builder_config": {"name": "llama"}, "plugin_config": {}}
CHECKPOINT = {"architecture": "LlamaForCausalLM", "dtype": "bfloat16", "mapping": {"tp_size": 1}}


def model(folder: Path, config: str) -> Path:
    (folder / "llama").mkdir()
    (folder / "llama" / "config.json").write_text(config)
    file = folder / "deployment.yaml"
    file.write_text(
        f"version: 1\nname: one\nenvironments: {{trtllm: {{python: {sys.executable}}}}}\n"
        "services:\n  llm: {runtime: trtllm, model: llama, environment: trtllm, gpus: 1}\n"
    )
    return paths.model(load.deployment(file), "llm", Path("llama"))


@pytest.mark.parametrize(
    ("config", "what", "hint"),
    [
        (ENGINE, "is an engine of TensorRT-LLM, no model", "coexist engines adopt"),
        (OLD_ENGINE, "is an engine of TensorRT-LLM, no model", "coexist engines adopt"),
        (CHECKPOINT, "is a converted checkpoint of TensorRT-LLM, no model", "Name it as 'checkpoint' in a recipe"),
    ],
)
def test_a_folder_of_tensorrt_llm_is_no_model(config: dict[str, object], what: str, hint: str, tmp_path: Path) -> None:
    with pytest.raises(ToolkitError) as caught:
        model(tmp_path, json.dumps(config))
    assert what in caught.value.what
    assert hint in str(caught.value.hint)
    assert "deployment.yaml:5 services.llm.model" in str(caught.value.where)


@pytest.mark.parametrize("config", ['{"model_type": "llama"}', "{}", "[]", "{"])
def test_anything_else_may_be_a_model(config: str, tmp_path: Path) -> None:
    assert model(tmp_path, config) == tmp_path / "llama"
