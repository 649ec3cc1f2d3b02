from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from toolkit.build.trtllm_options import Chosen
from toolkit.build.trtllm_readback import EngineConfig, check_built, check_limits, check_ranks, proof, read, switched
from toolkit.config.models import Limits
from toolkit.errors import ToolkitError

PLUGINS = {"context_fmha": False, "use_paged_context_fmha": False, "tokens_per_block": 32, "gemm_plugin": None}
MODEL = {"architecture": "LlamaForCausalLM", "dtype": "float16", "mapping": {"world_size": 2, "tp_size": 2}}
BUILD = {"max_batch_size": 8, "max_input_len": 512, "max_seq_len": 1024, "max_num_tokens": 4096}
OFF = Chosen({"--context_fmha": ("disable",), "--use_paged_context_fmha": ("disable",)})


def engine(folder: Path, *, plugins: dict[str, Any] | None = None, ranks: int = 2, **build: Any) -> EngineConfig:
    config = {
        "version": "0.21.0",
        "pretrained_config": MODEL,
        "build_config": {**BUILD, "plugin_config": PLUGINS if plugins is None else plugins, **build},
    }
    (folder / "config.json").write_text(json.dumps(config))
    for rank in range(ranks):
        (folder / f"rank{rank}.engine").write_bytes(b"engine")
    return read(folder)


def test_an_engine_is_read_by_its_config(tmp_path: Path) -> None:
    found = engine(tmp_path, kv_cache_type="PAGED")
    assert (found.version, found.tp_size, found.pp_size, found.world_size) == ("0.21.0", 2, 1, 2)
    assert (found.fmha, found.kv_cache_type, found.ranks) == ("disable", "paged", (0, 1))
    assert found.limits == BUILD


@pytest.mark.parametrize("value", ["KVCacheType.PAGED", "PAGED", "paged"])
def test_the_kind_of_kv_cache_is_read_in_every_spelling(value: str, tmp_path: Path) -> None:
    assert engine(tmp_path, kv_cache_type=value).kv_cache_type == "paged"


def test_an_engine_without_kv_cache_type_says_it_by_its_plugins(tmp_path: Path) -> None:
    assert engine(tmp_path, plugins={**PLUGINS, "paged_kv_cache": False}).kv_cache_type == "continuous"
    assert engine(tmp_path).kv_cache_type is None


def test_the_layout_before_releases_were_told_is_read_too(tmp_path: Path) -> None:
    old = {
        "builder_config": {
            "name": "llama", "precision": "float16", "tensor_parallel": 2, "max_input_len": 512, "max_output_len": 256,
        },
        "plugin_config": {"context_fmha": True, "paged_kv_cache": True},
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(old))
    found = read(tmp_path)
    assert (found.version, found.architecture, found.world_size, found.fmha) == (None, "llama", 2, "enable")
    assert found.limits == {"max_input_len": 512, "max_seq_len": 768}
    assert found.missing_ranks == (0, 1)


def test_old_engine_files_with_long_names_are_ranks_too(tmp_path: Path) -> None:
    (tmp_path / "llama_float16_tp2_rank1.engine").write_bytes(b"engine")
    assert engine(tmp_path, ranks=1).ranks == (0, 1)


@pytest.mark.parametrize("text", ["[]", "{}", '{"build_config": 3}', '{"architectures": []}'])
def test_what_is_no_engine_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ToolkitError, match="no config of an engine"):
        read(tmp_path)


def test_missing_and_empty_ranks_are_named(tmp_path: Path) -> None:
    found = engine(tmp_path, ranks=1)
    with pytest.raises(ToolkitError, match=r"missing or empty: rank1\.engine \(it said so\)"):
        check_ranks(found, 2, "it said so")
    (tmp_path / "rank1.engine").write_bytes(b"")
    assert read(tmp_path).missing_ranks == (1,)


def test_another_world_size_than_the_checkpoints_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ToolkitError, match="for 2 ranks, the checkpoint for 4"):
        check_ranks(engine(tmp_path), 4)


def test_what_was_asked_passes(tmp_path: Path) -> None:
    check_built(engine(tmp_path), OFF, "disable")


def test_words_of_truth_count_as_truths(tmp_path: Path) -> None:
    check_built(engine(tmp_path, plugins={"context_fmha": "disable"}), OFF, "disable")


@pytest.mark.parametrize(
    ("plugins", "code", "says"),
    [
        ({"context_fmha": True}, "refused_fmha", "'fmha: disable' was asked for, but"),
        ({"use_paged_context_fmha": True}, "refused_fmha", "use_paged_context_fmha: asked disable, built enable"),
        ({"gemm_plugin": "float16"}, "switched", "gemm_plugin: asked fp8, built float16"),
        ({"tokens_per_block": 128}, "switched", "tokens_per_block: asked 32, built 128"),
    ],
)
def test_every_switch_is_noticed(plugins: dict[str, Any], code: str, says: str, tmp_path: Path) -> None:
    asked = Chosen({**OFF.words, "--gemm_plugin": ("fp8",), "--tokens_per_block": ("32",)})
    built = {**PLUGINS, "gemm_plugin": "fp8", **plugins}
    with pytest.raises(ToolkitError) as caught:
        check_built(engine(tmp_path, plugins=built), asked, "disable")
    assert caught.value.code == code
    assert says in str(caught.value)


def test_a_config_that_does_not_tell_proves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ToolkitError, match="does not say"):
        check_built(engine(tmp_path, plugins={}), OFF, "disable")


def test_auto_may_become_anything_and_off_is_null(tmp_path: Path) -> None:
    asked = Chosen({"--gemm_plugin": ("disable",), "--gpt_attention_plugin": ("auto",)})
    built = engine(tmp_path, plugins={**PLUGINS, "gpt_attention_plugin": "bfloat16"})
    assert list(switched(built, asked)) == []


def test_what_the_machine_decides_is_a_note(tmp_path: Path) -> None:
    asked = Chosen({**OFF.words, "--use_custom_all_reduce": ("enable",)})
    built = engine(tmp_path, plugins={**PLUGINS, "use_custom_all_reduce": False})
    assert check_built(built, asked, "disable") == (
        "use_custom_all_reduce: asked enable, the builder chose disable for this machine",
    )


def test_an_engine_that_does_not_tell_its_ranks_has_those_that_are_there(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"build_config": {"plugin_config": PLUGINS}}))
    for rank in range(2):
        (tmp_path / f"rank{rank}.engine").write_bytes(b"engine")
    assert read(tmp_path).world_size == 2


def test_another_kv_cache_than_asked_is_a_switch(tmp_path: Path) -> None:
    built = engine(tmp_path, kv_cache_type="CONTINUOUS")
    assert list(switched(built, Chosen({"--kv_cache_type": ("paged",)}))) == [("kv_cache_type", "paged", "continuous")]


def test_lower_limits_are_refused_and_fewer_tokens_noted(tmp_path: Path) -> None:
    asked = Limits(max_batch_size=8, max_input_len=512, max_seq_len=1024, max_num_tokens=4096)
    assert check_limits(engine(tmp_path), asked) == ()
    assert "max_num_tokens is 1024" in check_limits(engine(tmp_path, max_num_tokens=1024), asked)[0]
    with pytest.raises(ToolkitError, match="max_batch_size: asked 8, built 4"):
        check_limits(engine(tmp_path, max_batch_size=4), asked)
    with pytest.raises(ToolkitError, match="max_num_tokens: asked 4096, built 256"):
        check_limits(engine(tmp_path, max_num_tokens=256), asked)


def test_the_proof_names_phase_and_level(tmp_path: Path) -> None:
    text = proof(engine(tmp_path))
    assert text.startswith("context phase, level config")
    assert "context_fmha=false" in text
    assert "MMHA, XQA" in text
