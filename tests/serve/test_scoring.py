from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForSequenceClassification

from tests.serve.small_models import BERT, WORDS, write_bert, write_cross_encoder, write_tokenizer
from toolkit.errors import ToolkitError
from toolkit.serve import sentence
from toolkit.serve.batcher import Tokens
from toolkit.serve.encoder import FAMILIES
from toolkit.serve.scoring import CosineScorer, HeadScorer, read_scoring

CPU = torch.device("cpu")
QUERY = "w1 w2 w3"
DOCUMENTS = ["w4", "w5 w6 w7 w8 w9 w10", "", "w1 w2 w3"]
SIZES = {name: value for name, value in BERT.items() if name.startswith(("num_", "hidden_s", "inter"))}
DISTILBERT = {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64}


def load(folder: Path, attention: str = "sdpa") -> tuple[sentence.SentenceEncoder, sentence.SentenceTokenizer]:
    config = sentence.read_sentence_config(folder)
    weights = sentence.load_encoder(config, CPU, torch.float32)
    encoder = sentence.SentenceEncoder(weights, config, sentence.choose_attention(weights, attention))
    return encoder, sentence.SentenceTokenizer.load(config, encoder.max_length)


def head(folder: Path) -> HeadScorer:
    return HeadScorer.load(folder, sentence.read_encoder_config(folder))


@pytest.mark.parametrize("kind", FAMILIES)
@pytest.mark.parametrize("attention", ["sdpa", "vanilla"])
def test_a_cross_encoder_s_logits_are_those_of_transformers(tmp_path: Path, kind: str, attention: str) -> None:
    sizes = DISTILBERT if kind == "distilbert" else SIZES
    padding = {} if kind in ("bert", "distilbert") else {"pad_token_id": 1}
    config = AutoConfig.for_model(
        kind, vocab_size=len(WORDS), max_position_embeddings=40, num_labels=1, **sizes, **padding
    )
    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_config(config).eval()
    # Fresh heads are nearly zero: then every score is alike and nothing is compared.
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.2) if weight.dim() == 2 else None
    model.save_pretrained(tmp_path)
    write_tokenizer(tmp_path)
    encoder, tokenizer = load(tmp_path, attention)
    scorer = head(tmp_path)
    pairs = scorer.tokens(tokenizer, QUERY, DOCUMENTS)
    mine = scorer.logits(encoder.embed(pairs).unbind())
    for pair, logit in zip(pairs, mine, strict=True):
        assert pair.second is not None
        types = [[0] * pair.second + [1] * (len(pair) - pair.second)]
        typed = {"token_type_ids": torch.tensor(types)} if kind == "bert" else {}
        with torch.inference_mode():
            expected = model(torch.tensor([pair.ids]), **typed).logits[0, 0]
        torch.testing.assert_close(logit, expected, atol=1e-5, rtol=1e-5)
    assert mine.max() - mine.min() > 1e-3


def test_the_second_text_of_a_pair_is_marked_in_every_order(tmp_path: Path) -> None:
    encoder, tokenizer = load(write_cross_encoder(tmp_path))
    pairs = tokenizer.encode_pairs(QUERY, DOCUMENTS)
    unmarked = [Tokens(pair.ids) for pair in pairs]
    together = encoder.embed([*pairs, *unmarked])
    alone = torch.cat([encoder.embed([one]) for one in (*pairs, *unmarked)])
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=1e-4)
    assert (together[: len(pairs)] - together[len(pairs) :]).abs().max() > 0.01


def test_of_a_pair_that_is_too_long_the_longer_text_is_cut(tmp_path: Path) -> None:
    encoder, tokenizer = load(write_cross_encoder(tmp_path))
    whole, cut = tokenizer.encode_pairs("w1 w2", ["w3", " ".join(["w4"] * 50)])
    assert (whole.truncated, cut.truncated) == (False, True)
    assert len(cut) == encoder.max_length
    assert cut.ids[:4] == whole.ids[:4]


def test_the_cosine_scorer_scores_the_same_text_with_1(tmp_path: Path) -> None:
    encoder, tokenizer = load(write_bert(tmp_path))
    scorer = CosineScorer()
    rows = encoder.embed(scorer.tokens(tokenizer, QUERY, DOCUMENTS))
    scores = scorer.scores(rows.unbind())
    assert scores.shape == (len(DOCUMENTS),)
    assert scores[3].item() == pytest.approx(1, abs=1e-5)
    expected = rows[1:] @ rows[0]
    torch.testing.assert_close(scores, expected)


@pytest.mark.parametrize(
    ("changes", "scoring"),
    [
        ({}, "sigmoid"),
        ({"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}, "logit"),
        ({"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}, "logit"),
        ({"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Sigmoid"}}, "sigmoid"),
    ],
)
def test_scores_are_what_the_model_s_files_make_of_logits(tmp_path: Path, changes: Any, scoring: str) -> None:
    write_cross_encoder(tmp_path, **changes)
    scorer = head(tmp_path)
    vectors = torch.randn(3, 32).unbind()
    logits = scorer.logits(vectors)
    assert scorer.scoring == scoring
    torch.testing.assert_close(scorer.scores(vectors), torch.sigmoid(logits) if scoring == "sigmoid" else logits)


def test_newer_sentence_transformers_files_are_heard_first(tmp_path: Path) -> None:
    write_cross_encoder(tmp_path, sbert_ce_default_activation_function="torch.nn.Sigmoid")
    said = {"activation_fn": "torch.nn.modules.linear.Identity", "model_type": "CrossEncoder"}
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(said))
    assert read_scoring(tmp_path) == "logit"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"id2label": {"0": "a", "1": "b", "2": "c"}}, "3 labels"),
        ({"id2label": None}, "2 labels"),
        ({"sbert_ce_default_activation_function": "torch.nn.Tanh"}, "torch.nn.Tanh"),
    ],
)
def test_heads_that_do_not_rank_are_refused(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ToolkitError, match=says):
        read_scoring(write_cross_encoder(tmp_path, **changes))


def test_a_model_under_a_pooling_is_an_embedding_model_whatever_its_architecture(tmp_path: Path) -> None:
    write_bert(tmp_path, architectures=["BertForSequenceClassification"])
    assert not sentence.read_sentence_config(tmp_path).cross_encoder
    assert sentence.read_sentence_config(write_cross_encoder(tmp_path / "other")).cross_encoder


@pytest.mark.slow
def test_scores_are_those_of_sentence_transformers(tmp_path: Path) -> None:
    from sentence_transformers import CrossEncoder  # noqa: PLC0415 - takes seconds; fast tests do without
    from transformers import PreTrainedTokenizerFast  # noqa: PLC0415

    write_cross_encoder(tmp_path)
    marks = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    # As a BERT's own tokenizer does, which cannot be made without a list of word pieces.
    names = ["input_ids", "token_type_ids", "attention_mask"]
    file = str(tmp_path / "tokenizer.json")
    PreTrainedTokenizerFast(tokenizer_file=file, model_input_names=names, **marks).save_pretrained(tmp_path)
    expected = CrossEncoder(str(tmp_path), device="cpu").predict([(QUERY, text) for text in DOCUMENTS])
    encoder, tokenizer = load(tmp_path)
    scorer = head(tmp_path)
    mine = scorer.scores(encoder.embed(scorer.tokens(tokenizer, QUERY, DOCUMENTS)).unbind())
    torch.testing.assert_close(mine, torch.from_numpy(expected), atol=1e-5, rtol=1e-4)
