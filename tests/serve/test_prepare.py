from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.serve import decoders
from toolkit.errors import ToolkitError
from toolkit.serve import prepare
from toolkit.serve.checkpoint import read_header
from toolkit.serve.prepare import MAX_UNFUSED_WORKSPACE_BYTES, choose_dtype, unfused_workspace_bytes
from toolkit.serve.progress import Progress


def options(model: Path, folder: Path, **changes: Any) -> argparse.Namespace:
    folder.mkdir(exist_ok=True)
    flags: dict[str, Any] = {
        "model": model, "engine_dir": folder, "reference": folder.parent / "reference.npy", "fmha": "enable",
        "dtype": "auto", "device": "cpu", "max_batch_size": 2, "max_input_len": 32, "max_seq_len": 64,
        "canary_tokens": 4, "canary_prompt": "hello", "canary_expected": None,
        "block_tokens": 16, "reuse_prefixes": "off", **changes,
    }  # fmt: skip
    return argparse.Namespace(**flags)


@pytest.mark.parametrize(
    ("asked", "model", "device", "features", "expected"),
    [
        ("auto", "bfloat16", "cpu", ["avx512_bf16"], "bfloat16"),
        ("auto", "bfloat16", "cpu", ["amx_bf16"], "bfloat16"),
        ("auto", "bfloat16", "cpu", ["avx2"], "float32"),
        ("auto", "float16", "cpu", ["avx512_bf16"], "float32"),
        ("auto", "float32", "cpu", ["avx512_bf16"], "float32"),
        ("auto", "float16", "cuda", [], "float16"),
        ("auto", None, "cuda", [], "float32"),
        ("float16", "bfloat16", "cpu", [], "float16"),
    ],
)
def test_auto_takes_what_the_device_multiplies_fastest_without_losing_the_models_precision(
    asked: str, model: str | None, device: str, features: list[str], expected: str
) -> None:
    assert choose_dtype(asked, model, device, features) == expected


def test_the_folder_then_holds_everything_but_the_packages(tmp_path: Path) -> None:
    decoders.save(tmp_path / "model")
    info = prepare.prepare(options(tmp_path / "model", tmp_path / "engine"), Progress(None))
    assert json.loads((tmp_path / "engine" / "engine.json").read_text()) == json.loads(json.dumps(info))
    assert info["canary"]["source"].startswith("transformers ")
    assert len(info["canary"]["tokens"]) >= 1
    assert info["limits"] == {"max_batch_size": 2, "max_input_len": 32, "max_seq_len": 64}
    assert (tmp_path / "engine" / "tokenizer.json").is_file()
    assert "model.layers.0.self_attn.qkv_proj.weight" in read_header(tmp_path / "engine" / "model.safetensors")
    assert np.load(tmp_path / "reference.npy").shape == (decoders.VOCAB,)


def test_more_positions_than_the_model_has_are_refused(tmp_path: Path) -> None:
    decoders.save(tmp_path / "model")
    asked = options(tmp_path / "model", tmp_path / "engine", max_seq_len=1000)
    with pytest.raises(ToolkitError, match=r"max_seq_len 1000 is over the model's 256"):
        prepare.prepare(asked, Progress(None))


def test_an_answer_that_is_not_expected_is_refused(tmp_path: Path) -> None:
    decoders.save(tmp_path / "model")
    asked = options(tmp_path / "model", tmp_path / "engine", canary_expected="never this")
    with pytest.raises(ToolkitError, match="not 'never this'"):
        prepare.prepare(asked, Progress(None))


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    decoders.save(tmp_path / "model")
    (tmp_path / "model" / "tokenizer.json").unlink()
    with pytest.raises(ToolkitError, match=r"tokenizer\.json is missing"):
        prepare.prepare(options(tmp_path / "model", tmp_path / "engine"), Progress(None))


def test_unfused_scores_that_take_too_much_memory_are_refused_with_what_fits(tmp_path: Path) -> None:
    decoders.save(tmp_path / "model", max_position_embeddings=1 << 20)
    longest = 20000
    asked = options(
        tmp_path / "model", tmp_path / "engine", fmha="disable", max_input_len=longest, max_seq_len=longest + 10
    )
    assert unfused_workspace_bytes(4, longest) > MAX_UNFUSED_WORKSPACE_BYTES
    with pytest.raises(ToolkitError) as caught:
        prepare.prepare(asked, Progress(None))
    fits = int(str(caught.value.hint).split("at most ")[1].split(",")[0])
    assert unfused_workspace_bytes(4, fits) <= MAX_UNFUSED_WORKSPACE_BYTES < unfused_workspace_bytes(4, fits + 1)
