from __future__ import annotations

import importlib.util
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from toolkit.serve import reference
from toolkit.serve.reference import NO_TRANSFORMERS, main

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "capital", "of", "france", "is"]
PROMPT = "The capital of France is"
POOLINGS = ["pooling_mode_mean_tokens", "pooling_mode_cls_token", "pooling_mode_max_tokens"]


def write(folder: Path, name: str, document: object) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document))


def sentence_model(folder: Path, pooling: str) -> None:
    """A tiny encoder with random weights, and the files that sentence-transformers reads beside it."""
    from transformers import BertConfig, BertModel, BertTokenizerFast  # noqa: PLC0415 - takes seconds

    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    BertTokenizerFast(vocab_file=str(folder / "vocab.txt")).save_pretrained(folder)
    sizes = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    BertModel(BertConfig(vocab_size=len(WORDS), max_position_embeddings=32, **sizes)).save_pretrained(folder)
    names = [("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize")]
    kinds = [(f"sentence_transformers.models.{name}", path) for name, path in names]
    modules = [{"idx": i, "name": str(i), "path": path, "type": kind} for i, (kind, path) in enumerate(kinds)]
    write(folder, "modules.json", modules)
    write(folder, "1_Pooling/config.json", {"word_embedding_dimension": 8, pooling: True})
    write(folder, "sentence_bert_config.json", {"max_seq_length": 16, "do_lower_case": False})


def answer(capsys: pytest.CaptureFixture[str], folder: Path, *flags: str) -> dict[str, object]:
    assert main(["--model-dir", str(folder), "--prompt", PROMPT, *flags]) == 0
    document: dict[str, object] = json.loads(capsys.readouterr().out)
    return document


def test_an_environment_without_transformers_is_told_apart(monkeypatch: pytest.MonkeyPatch, capsys, tmp_path: Path):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert main(["--model-dir", str(tmp_path), "--prompt", "x"]) == NO_TRANSFORMERS
    assert "transformers is not installed" in capsys.readouterr().err


def test_a_missing_folder_is_one_line(tmp_path: Path, capsys):
    assert main(["--model-dir", str(tmp_path / "none"), "--prompt", PROMPT]) == 1
    assert capsys.readouterr().err.startswith("error: ")


@pytest.mark.slow
@pytest.mark.parametrize("pooling", POOLINGS)
def test_the_vector_is_that_of_sentence_transformers(tmp_path: Path, capsys, pooling: str):
    from sentence_transformers import SentenceTransformer  # noqa: PLC0415 - takes seconds

    sentence_model(tmp_path, pooling)
    theirs = [float(x) for x in SentenceTransformer(str(tmp_path), device="cpu").encode(PROMPT)]
    made = answer(capsys, tmp_path)
    assert made["vector"] == pytest.approx(theirs, abs=1e-5)
    assert str(made["source"]).startswith("transformers ")


@pytest.mark.slow
def test_our_own_encoder_gives_the_same_and_says_that_it_was_it(tmp_path: Path, capsys):
    sentence_model(tmp_path, POOLINGS[0])
    ours = answer(capsys, tmp_path, "--own")
    assert ours["source"] == "coexist"
    assert ours["vector"] == pytest.approx(answer(capsys, tmp_path)["vector"], abs=1e-5)


@pytest.mark.slow
def test_a_pooling_that_only_the_server_knows_is_answered_by_our_own_encoder(tmp_path: Path, capsys):
    sentence_model(tmp_path, "pooling_mode_lasttoken")
    assert answer(capsys, tmp_path)["source"] == "coexist"


@pytest.mark.slow
def test_the_verb_prints_one_json_object(tmp_path: Path):
    sentence_model(tmp_path, POOLINGS[0])
    run = Path(reference.__file__).with_name("run.py")
    argv = [sys.executable, str(run), "reference", "--model-dir", str(tmp_path), "--prompt", PROMPT]
    document = json.loads(subprocess.run(argv, capture_output=True, check=True).stdout)
    assert document["prompt"] == PROMPT
    assert math.hypot(*document["vector"]) == pytest.approx(1)
