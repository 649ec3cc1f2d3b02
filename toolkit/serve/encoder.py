"""BERT-family encoders in plain torch, over packed tokens: no padding, no random initialisation, no transformers.

Shapes: T tokens of all texts one after another, N hidden size, H heads.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from toolkit.errors import ToolkitError
from toolkit.serve.attention import Attention, Bias, layout
from toolkit.serve.layers import ACTIVATIONS, Linear, Norm, linear
from toolkit.serve.model_files import read_json
from toolkit.serve.sizes import padded


@dataclass(frozen=True)
class Family:
    """How one architecture names its weights. ``layer`` and what follows hold ``.weight`` and ``.bias`` each."""

    layer: str
    query: str
    key: str
    value: str
    output: str
    attention_norm: str
    expand: str
    reduce: str
    output_norm: str
    keys: Mapping[str, str]
    positions_after_padding: bool = False
    has_token_types: bool = True
    # The second text of a pair has tokens of type 1.
    types_pairs: bool = False
    relative_bias: str | None = None
    # Of a cross-encoder's head, which is applied to the first token.
    head_dense: str = "classifier.dense"
    head_activation: str = "tanh"
    head_out: str = "classifier.out_proj"


# Distances from here on share the last bucket of T5's relative positions, which MPNet was trained with.
_FARTHEST_BIAS = 128
_BERT_KEYS = {
    "hidden": "hidden_size", "layers": "num_hidden_layers", "heads": "num_attention_heads",
    "intermediate": "intermediate_size", "activation": "hidden_act",
}  # fmt: skip
_DISTILBERT_KEYS = {
    "hidden": "dim", "layers": "n_layers", "heads": "n_heads", "intermediate": "hidden_dim", "activation": "activation",
}  # fmt: skip


def _bert(**changes: Any) -> Family:
    names: dict[str, Any] = {
        "layer": "encoder.layer",
        "query": "attention.self.query",
        "key": "attention.self.key",
        "value": "attention.self.value",
        "output": "attention.output.dense",
        "attention_norm": "attention.output.LayerNorm",
        "expand": "intermediate.dense",
        "reduce": "output.dense",
        "output_norm": "output.LayerNorm",
        "keys": _BERT_KEYS,
    }
    return Family(**{**names, **changes})


_MPNET = _bert(
    query="attention.attn.q", key="attention.attn.k", value="attention.attn.v", output="attention.attn.o",
    attention_norm="attention.LayerNorm", positions_after_padding=True, has_token_types=False,
    relative_bias="encoder.relative_attention_bias.weight",
)  # fmt: skip
_DISTILBERT = Family(
    layer="transformer.layer", query="attention.q_lin", key="attention.k_lin", value="attention.v_lin",
    output="attention.out_lin", attention_norm="sa_layer_norm", expand="ffn.lin1", reduce="ffn.lin2",
    output_norm="output_layer_norm", keys=_DISTILBERT_KEYS, has_token_types=False,
    head_dense="pre_classifier", head_activation="relu", head_out="classifier",
)  # fmt: skip
# By ``model_type`` of config.json.
FAMILIES: Mapping[str, Family] = {
    "bert": _bert(types_pairs=True, head_dense="pooler.dense", head_out="classifier"),
    "roberta": _bert(positions_after_padding=True),
    "xlm-roberta": _bert(positions_after_padding=True),
    "camembert": _bert(positions_after_padding=True),
    "distilbert": _DISTILBERT,
    "mpnet": _MPNET,
}


@dataclass(frozen=True)
class EncoderConfig:
    """Sizes of one encoder; ``first_position`` is the row of the position table that the first token takes."""

    family: Family
    vocab_size: int
    hidden: int
    layers: int
    heads: int
    intermediate: int
    activation: str
    norm_eps: float
    positions: int
    first_position: int
    token_types: int = 0
    bias_buckets: int = 0

    @property
    def max_length(self) -> int:
        """The longest text in tokens."""
        return self.positions - self.first_position

    @property
    def types_pairs(self) -> bool:
        """True when the second text of a pair is marked by its tokens' type."""
        return self.family.types_pairs and self.token_types > 1


def read_encoder_config(folder: Path) -> EncoderConfig:
    """The sizes in ``config.json`` of a model folder.

    Raises: ToolkitError when the folder or file is missing, the architecture unsupported, or a value is not usable.
    """
    path = folder / "config.json"
    raw = read_json(path)
    family = _family(raw, path)
    try:
        return _sizes(raw, family)
    except (KeyError, TypeError, ValueError) as e:
        raise ToolkitError(f"a size is missing or wrong: {e}", str(path), "Fetch the model again.") from e


def _family(raw: Mapping[str, Any], path: Path) -> Family:
    kind = raw.get("model_type")
    family = FAMILIES.get(str(kind))
    if family is None:
        names = raw.get("architectures") or [kind]
        supported = ", ".join(FAMILIES)
        raise ToolkitError(
            f"the architecture {names[0]} (model_type {kind}) is not supported",
            str(path),
            f"Supported model types: {supported}.",
            code="unsupported_architecture",
        )
    if raw.get("position_embedding_type", "absolute") != "absolute":
        what = f"position_embedding_type '{raw['position_embedding_type']}' is not supported"
        raise ToolkitError(what, str(path), "Supported: absolute.", code="unsupported_architecture")
    activation = raw.get(family.keys["activation"], "gelu")
    if activation not in ACTIVATIONS:
        what, known = f"the activation '{activation}' is not supported", ", ".join(ACTIVATIONS)
        raise ToolkitError(what, str(path), f"Supported: {known}.", code="unsupported_architecture")
    return family


def _sizes(raw: Mapping[str, Any], family: Family) -> EncoderConfig:
    keys = family.keys
    padding = int(raw.get("pad_token_id", 1)) if family.positions_after_padding else -1
    config = EncoderConfig(
        family=family,
        vocab_size=int(raw["vocab_size"]),
        hidden=int(raw[keys["hidden"]]),
        layers=int(raw[keys["layers"]]),
        heads=int(raw[keys["heads"]]),
        intermediate=int(raw[keys["intermediate"]]),
        activation=str(raw.get(keys["activation"], "gelu")),
        norm_eps=float(raw.get("layer_norm_eps", 1e-12)),
        positions=int(raw["max_position_embeddings"]),
        first_position=padding + 1,
        token_types=int(raw.get("type_vocab_size", 2)) if family.has_token_types else 0,
        bias_buckets=int(raw.get("relative_attention_num_buckets", 32)) if family.relative_bias else 0,
    )
    if min(config.hidden, config.layers, config.heads, config.max_length) < 1 or config.hidden % config.heads:
        raise ValueError(f"hidden size {config.hidden} with {config.heads} heads")
    return config


class Checkpoint:
    """Tensors of a folder's safetensors files, mapped and read by name when asked for."""

    def __init__(self, folder: Path, device: torch.device, dtype: torch.dtype, on_bytes: Callable[[int], None]) -> None:
        self._folder = folder
        self._dtype = dtype
        self._on_bytes = on_bytes
        files = {path: _open(path, device) for path in weight_files(folder)}
        self._file_of = {_modern(name): (file, name) for file in files.values() for name in file.keys()}  # noqa: SIM118
        marker = "embeddings.word_embeddings.weight"
        whole = next((name for name in self._file_of if name.endswith(marker)), marker)
        # Heads on top of an encoder put their own prefix before its names.
        self._prefix = whole.removesuffix(marker)

    def take(self, name: str, *shape: int) -> Tensor:
        """The tensor of this name, under the encoder's prefix or without it, in the dtype of this checkpoint.

        Raises: ToolkitError when it is missing, broken, or of another shape or kind than the sizes say.
        """
        file, stored = self._file_of.get(self._prefix + name) or self._file_of.get(name, (None, name))
        if file is None:
            raise self._error(f"the weight '{name}' is missing")
        try:
            tensor: Tensor = file.get_tensor(stored)
        except SafetensorError as e:
            raise self._error(f"the weight '{name}' cannot be read: {e}") from e
        if tuple(tensor.shape) != shape or not tensor.is_floating_point():
            kind = str(tensor.dtype).removeprefix("torch.")
            raise self._error(f"the weight '{name}' is {kind} {list(tensor.shape)}, not floating {list(shape)}")
        self._on_bytes(tensor.nbytes)
        return tensor.to(self._dtype)

    def linear(self, name: str, out_size: int, in_size: int) -> Linear:
        """The affine map of this name. Raises: ToolkitError as ``take``."""
        return linear(self.take(f"{name}.weight", out_size, in_size), self.take(f"{name}.bias", out_size))

    def _error(self, what: str) -> ToolkitError:
        return ToolkitError(what, str(self._folder), "Fetch the model again.", code="damaged_model")


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a model folder.

    Raises: ToolkitError when there is none, or one that the index names is missing.
    """
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        path = folder / "model.safetensors"
        if path.is_file():
            return [path]
        raise ToolkitError("model.safetensors is missing", str(folder), "Save the model as safetensors.")
    shards = read_json(index).get("weight_map", {})
    paths = [folder / name for name in sorted(set(map(str, shards.values())))] if isinstance(shards, dict) else []
    missing = [path.name for path in paths if not path.is_file()]
    if missing or not paths:
        names = ", ".join(missing) or "every shard"
        raise ToolkitError(f"missing: {names}", str(folder), "Fetch the model again.", code="damaged_model")
    return paths


def _open(path: Path, device: torch.device) -> Any:
    try:
        return safe_open(path, framework="pt", device=str(device))
    except (SafetensorError, OSError) as e:
        what = f"not a whole safetensors file: {e}"
        raise ToolkitError(what, str(path), "Fetch the model again.", code="damaged_model") from e


def _modern(name: str) -> str:
    # The first BERT checkpoints were converted from TensorFlow, with its names for the norm.
    return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")


@dataclass(frozen=True)
class Layer:
    """One block: attention and feed-forward, each followed by a norm over the sum with its input."""

    qkv: Linear
    output: Linear
    attention_norm: Norm
    expand: Linear
    reduce: Linear
    output_norm: Norm


class Encoder:
    """Hidden states of packed texts. ``dtype`` is that of the weights."""

    def __init__(self, config: EncoderConfig, source: Checkpoint) -> None:
        self.config = config
        self._source = source
        self._words = source.take("embeddings.word_embeddings.weight", config.vocab_size, config.hidden)
        self._positions = self._position_table()
        self._norm = self._take_norm("embeddings.LayerNorm")
        self._layers = [self._take_layer(f"{config.family.layer}.{n}") for n in range(config.layers)]
        self._bias = self._take_bias()
        self._counting = torch.arange(len(self._positions), device=self.device)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self._words.device

    @property
    def dtype(self) -> torch.dtype:
        """Of weights and hidden states."""
        return self._words.dtype

    @property
    def has_bias(self) -> bool:
        """True when attention takes a position bias."""
        return self._bias is not None

    def forward(
        self, texts: Sequence[Sequence[int]], attention: Attention, seconds: Sequence[int | None] = ()
    ) -> Tensor:
        """Hidden states [T, N] of texts of token ids, in their order. Equal lengths side by side are fastest.

        ``seconds`` says of each text where the second one of a pair begins in it.
        """
        count = sum(map(len, texts))
        fillers = tuple(self._fillers(count))
        texts, seconds = (*texts, *fillers), (*seconds, *[None] * len(fillers)) if seconds else ()
        lengths = [len(text) for text in texts]
        ids = torch.tensor([token for text in texts for token in text], device=self.device)
        places = self._places(lengths, seconds)
        where = layout(lengths, self.device, self._position_bias())
        x = self._norm(F.embedding(ids, self._words) + F.embedding(places, self._positions))
        for layer in self._layers:
            q, k, v = layer.qkv(x).view(len(x), 3, self.config.heads, -1).unbind(1)
            x = layer.attention_norm(layer.output.added(attention(q, k, v, where).flatten(1), x))
            x = layer.output_norm(layer.reduce.added(layer.expand.activated(x, self.config.activation), x))
        return x[:count]

    def _fillers(self, count: int) -> Iterator[Sequence[int]]:
        """Texts that nobody asked for, so that the products of a batch have one of few sizes.

        A number of tokens never seen before costs 5 to 8 ms more on an H200, where other kernels are loaded, and 9 ms
        and 2.4 MiB that stay on a CPU, where oneDNN makes them.
        """
        missing = padded(count, sys.maxsize) - count
        for begin in range(0, missing, self.config.max_length):
            yield (0,) * min(self.config.max_length, missing - begin)

    def _places(self, lengths: Sequence[int], seconds: Sequence[int | None]) -> Tensor:
        """Rows of the position table."""
        if not self.config.types_pairs or not any(seconds):
            return torch.cat([self._counting[:length] for length in lengths])
        counting, half = self._counting, self.config.max_length
        parts = []
        for length, second in zip(lengths, seconds, strict=True):
            first = length if second is None else second
            parts += [counting[:first], counting[half + first : half + length]]
        return torch.cat(parts)

    def _position_table(self) -> Tensor:
        """Rows of each position for tokens of type 0, and after them for tokens of type 1."""
        config = self.config
        table = self._source.take("embeddings.position_embeddings.weight", config.positions, config.hidden)
        table = table[config.first_position :]
        if not config.token_types:
            return table
        types = self._source.take("embeddings.token_type_embeddings.weight", config.token_types, config.hidden)
        return torch.cat([table + kind for kind in types[: 2 if config.types_pairs else 1]])

    def _take_norm(self, name: str) -> Norm:
        size = self.config.hidden
        weight, bias = self._source.take(f"{name}.weight", size), self._source.take(f"{name}.bias", size)
        return Norm(weight, bias, self.config.norm_eps)

    def _take_layer(self, prefix: str) -> Layer:
        config, family = self.config, self.config.family
        hidden, wide = config.hidden, config.intermediate
        names = [f"{prefix}.{name}" for name in (family.query, family.key, family.value)]
        weights = [self._source.take(f"{name}.weight", hidden, hidden) for name in names]
        biases = [self._source.take(f"{name}.bias", hidden) for name in names]
        return Layer(
            qkv=linear(torch.cat(weights), torch.cat(biases)),
            output=self._source.linear(f"{prefix}.{family.output}", hidden, hidden),
            attention_norm=self._take_norm(f"{prefix}.{family.attention_norm}"),
            expand=self._source.linear(f"{prefix}.{family.expand}", wide, hidden),
            reduce=self._source.linear(f"{prefix}.{family.reduce}", hidden, wide),
            output_norm=self._take_norm(f"{prefix}.{family.output_norm}"),
        )

    def _take_bias(self) -> Tensor | None:
        name = self.config.family.relative_bias
        if name is None:
            return None
        buckets = self._source.take(name, self.config.bias_buckets, self.config.heads)
        farthest = self.config.max_length - 1
        distances = torch.arange(-farthest, farthest + 1, device=buckets.device)
        return buckets[bias_bucket(distances, self.config.bias_buckets)].T.contiguous()

    def _position_bias(self) -> Bias | None:
        table = self._bias
        if table is None:
            return None

        def by_distance(length: int) -> Tensor:
            places = self._counting[:length]
            return table[:, places[None, :] - places[:, None] + self.config.max_length - 1]

        return by_distance


def bias_bucket(distance: Tensor, buckets: int) -> Tensor:
    """The bucket of each distance key - query: exact when near, logarithmic when far, the later half for keys behind.

    Source: T5's relative positions, bidirectional (Raffel et al. 2020), which MPNet takes over.
    """
    half = buckets // 2
    exact = half // 2
    size = distance.abs()
    scale = torch.log(size.clamp(min=1).float() / exact) / math.log(_FARTHEST_BIAS / exact)
    far = (exact + (scale * (half - exact)).long()).clamp(max=half - 1)
    return torch.where(size < exact, size, far) + (distance > 0).long() * half
