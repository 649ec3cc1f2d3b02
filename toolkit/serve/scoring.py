"""Relevance of documents to a query: by a cross-encoder's head, or by the cosine of embeddings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from toolkit.errors import ToolkitError
from toolkit.serve.batcher import Tokens
from toolkit.serve.encoder import Checkpoint, EncoderConfig
from toolkit.serve.model_files import read_json_if_there
from toolkit.serve.sentence import SentenceConfig, SentenceTokenizer

Scoring = Literal["sigmoid", "logit", "cosine"]
# The last word of the activation that sentence-transformers writes into its files.
_SCORING: Mapping[str, Scoring] = {"Sigmoid": "sigmoid", "Identity": "logit"}


class Scorer(Protocol):
    """How one model scores documents."""

    scoring: Scoring

    def tokens(self, tokenizer: SentenceTokenizer, query: str, documents: Sequence[str]) -> list[Tokens]:
        """What the encoder has to embed; the last ones are the documents in their order."""

    def scores(self, vectors: Sequence[Tensor]) -> Tensor:
        """The score of each document [n], from the embeddings of ``tokens``."""


class CosineScorer:
    """The cosine between the embedding of the query and that of each document."""

    scoring: Scoring = "cosine"

    def tokens(self, tokenizer: SentenceTokenizer, query: str, documents: Sequence[str]) -> list[Tokens]:
        """The query, then the documents."""
        return tokenizer.encode([query, *documents])

    def scores(self, vectors: Sequence[Tensor]) -> Tensor:
        """The cosine of each document [n]."""
        return F.cosine_similarity(vectors[0][None], torch.stack(list(vectors[1:])))


class HeadScorer:
    """The head of a cross-encoder over the first token of each pair."""

    def __init__(self, config: EncoderConfig, source: Checkpoint, scoring: Scoring) -> None:
        family = config.family
        self.scoring = scoring
        self._dense = source.linear(family.head_dense, config.hidden, config.hidden)
        self._activation = family.head_activation
        self._out = source.linear(family.head_out, 1, config.hidden)

    @classmethod
    def load(cls, folder: Path, config: EncoderConfig) -> HeadScorer:
        """The head of a folder, float32 on the CPU. Raises: ToolkitError."""
        source = Checkpoint(folder, torch.device("cpu"), torch.float32, lambda _: None)
        return cls(config, source, read_scoring(folder))

    def tokens(self, tokenizer: SentenceTokenizer, query: str, documents: Sequence[str]) -> list[Tokens]:
        """The query with each document."""
        return tokenizer.encode_pairs(query, documents)

    def logits(self, vectors: Sequence[Tensor]) -> Tensor:
        """The head's one logit for each pair [n]."""
        return self._out(self._dense.activated(torch.stack(list(vectors)), self._activation)).squeeze(-1)

    def scores(self, vectors: Sequence[Tensor]) -> Tensor:
        """The score of each document [n]."""
        logits = self.logits(vectors)
        return torch.sigmoid(logits) if self.scoring == "sigmoid" else logits


def load_scorer(config: SentenceConfig, sizes: EncoderConfig) -> Scorer:
    """The scorer of a folder. Raises: ToolkitError."""
    return HeadScorer.load(config.encoder_dir, sizes) if config.cross_encoder else CosineScorer()


def read_scoring(folder: Path) -> Scoring:
    """What the folder's files make of a logit; the sigmoid where they say nothing, as in sentence-transformers.

    Raises: ToolkitError when it is something else, or when the head has more labels than one.
    """
    config = read_json_if_there(folder / "config.json")
    labels = config.get("num_labels") or len(config.get("id2label") or "ab")
    where = str(folder / "config.json")
    if labels != 1:
        what = f"the classification head has {labels} labels; a reranker has one"
        raise ToolkitError(what, where, "Give an embedding model or a reranker.", code="unsupported_architecture")
    name = _activation_name(folder, config)
    scoring = _SCORING.get(name.rpartition(".")[2])
    if scoring is None:
        what, known = f"the activation '{name}' of the scores is not supported", ", ".join(_SCORING)
        raise ToolkitError(what, where, f"Supported: {known}.", code="unsupported_architecture")
    return scoring


def _activation_name(folder: Path, config: Mapping[str, Any]) -> str:
    kept = config.get("sentence_transformers")
    said = (
        read_json_if_there(folder / "config_sentence_transformers.json").get("activation_fn"),
        kept.get("activation_fn") if isinstance(kept, dict) else None,
        config.get("sbert_ce_default_activation_function"),
    )
    return next((name for name in said if isinstance(name, str)), "Sigmoid")
