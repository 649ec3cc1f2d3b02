from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from toolkit.errors import ToolkitError
from toolkit.serve.architecture import decoder_config_of, parse_decoder_config, read_decoder_config

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "eos_token_id": 2,
}


def test_an_unsupported_architecture_is_named_with_the_supported_list() -> None:
    with pytest.raises(ToolkitError) as caught:
        parse_decoder_config({**LLAMA, "architectures": ["LlamaForCausalLLM"]})
    assert "'LlamaForCausalLLM'" in caught.value.what
    for name in ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"):
        assert name in str(caught.value.hint)
    assert "nearest is LlamaForCausalLM" in str(caught.value.hint)


@pytest.mark.parametrize("kind", ["yarn", "dynamic", "longrope"])
def test_an_unsupported_rope_scaling_is_named(kind: str) -> None:
    with pytest.raises(ToolkitError, match=kind):
        parse_decoder_config({**LLAMA, "rope_scaling": {"rope_type": kind, "factor": 2.0}})


def test_old_and_new_names_of_rope_mean_the_same() -> None:
    old = parse_decoder_config({**LLAMA, "rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}})
    new = parse_decoder_config({**LLAMA, "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5}})
    assert old == new


def test_an_activation_that_is_not_silu_is_refused() -> None:
    with pytest.raises(ToolkitError, match="gelu"):
        parse_decoder_config({**LLAMA, "hidden_act": "gelu"})


def test_end_tokens_of_the_generation_config_come_first(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [7, 9]}')
    assert read_decoder_config(tmp_path).eos_token_ids == (7, 9)


def test_a_missing_folder_says_so(tmp_path: Path) -> None:
    with pytest.raises(ToolkitError, match="does not exist"):
        read_decoder_config(tmp_path / "none")


@pytest.mark.parametrize(
    ("text", "what"),
    [("{", "cannot be read"), ("[]", "no JSON object"), ('{"architectures": ["LlamaForCausalLM"]}', "is missing")],
)
def test_a_broken_config_names_its_file(text: str, what: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ToolkitError, match=what) as caught:
        read_decoder_config(tmp_path)
    assert "config.json" in str(caught.value.where)


@pytest.mark.parametrize(
    "change", [{"num_key_value_heads": 3}, {"head_dim": 15}, {"num_hidden_layers": 0}, {"vocab_size": "many"}]
)
def test_values_that_contradict_each_other_are_refused(change: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA, **change}))
    with pytest.raises(ToolkitError, match="a value is wrong"):
        read_decoder_config(tmp_path)


def test_a_config_survives_engine_json() -> None:
    config = parse_decoder_config({**LLAMA, "architectures": ["MistralForCausalLM"], "sliding_window": 5})
    assert decoder_config_of(json.loads(json.dumps(asdict(config)))) == config
    assert config.windows == (5, 5)


def test_qwen_ignores_a_window_that_is_not_used() -> None:
    config = parse_decoder_config({**LLAMA, "architectures": ["Qwen2ForCausalLM"], "sliding_window": 5})
    assert config.windows == (None, None)
