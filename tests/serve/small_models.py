"""A BERT with random weights and a tokenizer of a few words, small enough to make in every test."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

HIDDEN, LAYERS, HEADS, WIDE, POSITIONS = 32, 2, 2, 64, 24
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *(f"w{n}" for n in range(60))]

BERT = {
    "model_type": "bert", "architectures": ["BertModel"], "vocab_size": len(WORDS), "hidden_size": HIDDEN,
    "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "intermediate_size": WIDE, "hidden_act": "gelu",
    "max_position_embeddings": POSITIONS, "type_vocab_size": 2, "layer_norm_eps": 1e-12, "pad_token_id": 0,
}  # fmt: skip


def bert_tensors(seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator) * 0.3

    tensors = {
        "embeddings.word_embeddings.weight": random(len(WORDS), HIDDEN),
        "embeddings.position_embeddings.weight": random(POSITIONS, HIDDEN),
        "embeddings.token_type_embeddings.weight": random(2, HIDDEN),
    }
    names = [("embeddings.LayerNorm", (HIDDEN,))]
    for n in range(LAYERS):
        square, layer = (HIDDEN, HIDDEN), f"encoder.layer.{n}"
        names += [(f"{layer}.attention.self.{part}", square) for part in ("query", "key", "value")]
        names += [(f"{layer}.attention.output.dense", square), (f"{layer}.attention.output.LayerNorm", (HIDDEN,))]
        names += [(f"{layer}.intermediate.dense", (WIDE, HIDDEN)), (f"{layer}.output.dense", (HIDDEN, WIDE))]
        names += [(f"{layer}.output.LayerNorm", (HIDDEN,))]
    for name, shape in names:
        tensors[f"{name}.weight"] = random(*shape) + (1.0 if len(shape) == 1 else 0.0)
        tensors[f"{name}.bias"] = random(shape[0])
    return tensors


def write_tokenizer(folder: Path) -> None:
    """Nothing; a tokenizer that pads and cuts on its own, as published ones do."""
    tokenizer = Tokenizer(models.WordLevel({word: n for n, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.enable_truncation(5)
    tokenizer.enable_padding(length=5)
    tokenizer.save(str(folder / "tokenizer.json"))


def write_bert(folder: Path, **changes: Any) -> Path:
    """The folder, with config, weights, tokenizer and sentence-transformers files."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**BERT, **changes}))
    save_file(bert_tensors(), folder / "model.safetensors")
    write_tokenizer(folder)
    write_sentence_files(folder)
    return folder


def write_sentence_files(folder: Path, *, max_seq_length: int = 12, mode: str = "mean_tokens") -> None:
    modules = [
        {"idx": n, "name": str(n), "path": path, "type": f"sentence_transformers.models.{name}"}
        for n, (name, path) in enumerate([("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize")])
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    pooling = {"word_embedding_dimension": HIDDEN, f"pooling_mode_{mode}": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": max_seq_length}))


def write_cross_encoder(folder: Path, *, scale: float = 0.3, **changes: Any) -> Path:
    """The folder, with a BERT under a head of one label, and no sentence-transformers files."""
    folder.mkdir(parents=True, exist_ok=True)
    head = {"architectures": ["BertForSequenceClassification"], "id2label": {"0": "LABEL_0"}}
    (folder / "config.json").write_text(json.dumps({**BERT, **head, **changes}))
    generator = torch.Generator().manual_seed(1)
    shapes = {"bert.pooler.dense": (HIDDEN, HIDDEN), "classifier": (1, HIDDEN)}
    tensors = {f"bert.{name}": tensor for name, tensor in bert_tensors().items()}
    for name, shape in shapes.items():
        tensors[f"{name}.weight"] = torch.randn(shape, generator=generator) * scale
        tensors[f"{name}.bias"] = torch.randn(shape[0], generator=generator) * scale
    save_file(tensors, folder / "model.safetensors")
    write_tokenizer(folder)
    return folder
