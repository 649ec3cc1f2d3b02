from __future__ import annotations

import importlib.util
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from toolkit.errors import ToolkitError
from toolkit.serve import reference
from toolkit.serve.reference import Head, embed, main, read_head

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "capital", "of", "france", "is"]
PROMPT = "The capital of France is"


def write(folder: Path, name: str, document: object) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document))


def sentence_model(folder: Path, pooling: str, *kinds: str, normalize: bool = True) -> None:
    modules = ["Transformer", "Pooling", *kinds, *(["Normalize"] if normalize else [])]
    write(
        folder,
        "modules.json",
        [
            {
                "idx": index,
                "name": str(index),
                "path": "" if index == 0 else f"{index}_{kind}",
                "type": f"sentence_transformers.models.{kind}",
            }
            for index, kind in enumerate(modules)
        ],
    )
    write(folder, "1_Pooling/config.json", {"word_embedding_dimension": 8, pooling: True})
    write(folder, "sentence_bert_config.json", {"max_seq_length": 16, "do_lower_case": False})


def test_a_plain_encoder_is_pooled_by_its_mean(tmp_path: Path):
    assert read_head(tmp_path) == Head("mean", True, None)


@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
def test_pooling_and_length_are_read_from_the_folder(tmp_path: Path, pooling: str):
    key = "pooling_mode_cls_token" if pooling == "cls" else f"pooling_mode_{pooling}_tokens"
    sentence_model(tmp_path, key, normalize=False)
    assert read_head(tmp_path) == Head(pooling, False, 16)


def test_an_unknown_module_is_named(tmp_path: Path):
    sentence_model(tmp_path, "pooling_mode_mean_tokens", "Dense")
    with pytest.raises(ToolkitError, match="the module 'Dense' is not supported"):
        read_head(tmp_path)


def test_an_unknown_pooling_is_named(tmp_path: Path):
    sentence_model(tmp_path, "pooling_mode_weightedmean_tokens")
    with pytest.raises(ToolkitError, match="pooling_mode_weightedmean_tokens"):
        read_head(tmp_path)


def test_damaged_json_is_named(tmp_path: Path):
    (tmp_path / "modules.json").write_text("{")
    with pytest.raises(ToolkitError, match="is damaged"):
        read_head(tmp_path)


def test_an_environment_without_transformers_is_told_apart(monkeypatch: pytest.MonkeyPatch, capsys, tmp_path: Path):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert main(["--model-dir", str(tmp_path), "--prompt", "x"]) == reference.NO_TRANSFORMERS
    assert "transformers is not installed" in capsys.readouterr().err


def tiny_encoder(folder: Path) -> None:
    from transformers import BertConfig, BertModel, BertTokenizerFast  # noqa: PLC0415 - takes seconds

    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    BertTokenizerFast(vocab_file=str(folder / "vocab.txt")).save_pretrained(folder)
    sizes = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    BertModel(BertConfig(vocab_size=len(WORDS), max_position_embeddings=32, **sizes)).save_pretrained(folder)


@pytest.mark.slow
@pytest.mark.parametrize("pooling", ["pooling_mode_mean_tokens", "pooling_mode_cls_token", "pooling_mode_max_tokens"])
def test_the_vector_is_that_of_sentence_transformers(tmp_path: Path, pooling: str):
    from sentence_transformers import SentenceTransformer  # noqa: PLC0415 - takes seconds

    tiny_encoder(tmp_path)
    sentence_model(tmp_path, pooling)
    theirs = SentenceTransformer(str(tmp_path), device="cpu").encode(PROMPT)
    ours = embed(tmp_path, PROMPT, read_head(tmp_path))
    assert ours == pytest.approx([float(x) for x in theirs], abs=1e-5)


@pytest.mark.slow
def test_the_verb_prints_one_json_object(tmp_path: Path):
    tiny_encoder(tmp_path)
    run = Path(reference.__file__).with_name("run.py")
    argv = [sys.executable, str(run), "reference", "--model-dir", str(tmp_path), "--prompt", PROMPT]
    document = json.loads(subprocess.run(argv, capture_output=True, check=True).stdout)
    assert document["prompt"] == PROMPT
    assert document["source"].startswith("transformers ")
    assert math.hypot(*document["vector"]) == pytest.approx(1)


@pytest.mark.slow
def test_a_folder_that_is_no_model_is_one_line(tmp_path: Path, capsys):
    assert main(["--model-dir", str(tmp_path), "--prompt", PROMPT]) == 1
    assert capsys.readouterr().err.startswith("error: ")
