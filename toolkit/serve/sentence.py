"""Sentence embeddings as the sentence-transformers files of a model folder say: tokens, encoder, pooling, norm."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from toolkit.errors import ToolkitError
from toolkit.serve.attention import Attention, Needs, candidates, obstacle
from toolkit.serve.batcher import Tokens
from toolkit.serve.encoder import Checkpoint, Encoder, read_encoder_config
from toolkit.serve.model_files import read_json_if_there
from toolkit.serve.status import log
from toolkit.serve.tokenizer import read_tokenizer

SUPPORTED_MODULES = ("Transformer", "Pooling", "Normalize")
# In the order in which sentence-transformers puts several modes side by side.
_LEGACY_MODES = {
    "pooling_mode_cls_token": "cls", "pooling_mode_max_tokens": "max", "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens", "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}  # fmt: skip
# The observed first forward of a model: any ids, long enough to be no special case.
PROBE_TOKENS = 16


@dataclass(frozen=True)
class SentenceConfig:
    """What a folder's files say. ``max_seq_length`` None: whatever encoder and tokenizer allow.

    A cross-encoder's head takes the first token, so that is its pooling.
    """

    encoder_dir: Path
    pooling: tuple[str, ...] = ("mean",)
    normalize: bool = False
    max_seq_length: int | None = None
    lower_case: bool = False
    default_prompt: str = ""
    cross_encoder: bool = False


def read_sentence_config(folder: Path) -> SentenceConfig:
    """The configuration of a folder; without ``modules.json``, mean pooling as sentence-transformers does.

    Raises: ToolkitError when the folder is missing or asks for a module or pooling that is not supported.
    """
    if not folder.is_dir():
        raise ToolkitError("there is no such folder", str(folder), "Give the folder of a Hugging Face model.")
    modules = _modules(folder)
    encoder_dir = folder / modules.get("Transformer", "")
    limits = read_json_if_there(encoder_dir / "sentence_bert_config.json")
    length = limits.get("max_seq_length")
    pooling = read_json_if_there(folder / modules["Pooling"] / "config.json") if "Pooling" in modules else {}
    cross_encoder = "Pooling" not in modules and _has_head(encoder_dir)
    return SentenceConfig(
        encoder_dir=encoder_dir,
        pooling=("cls",) if cross_encoder else _pooling(pooling, folder),
        normalize="Normalize" in modules,
        max_seq_length=length if isinstance(length, int) and length > 0 else None,
        lower_case=bool(limits.get("do_lower_case", False)),
        default_prompt=_default_prompt(read_json_if_there(folder / "config_sentence_transformers.json")),
        cross_encoder=cross_encoder,
    )


def _has_head(encoder_dir: Path) -> bool:
    names = read_json_if_there(encoder_dir / "config.json").get("architectures")
    return isinstance(names, list) and any(str(name).endswith("ForSequenceClassification") for name in names)


def _modules(folder: Path) -> Mapping[str, str]:
    path = folder / "modules.json"
    if not path.is_file():
        return {}
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
        modules = {str(entry["type"]).rpartition(".")[2]: str(entry.get("path", "")) for entry in entries}
    except (ValueError, TypeError, KeyError, AttributeError) as e:
        raise ToolkitError(f"not a list of modules: {e}", str(path), "Fetch the model again.") from e
    _check_supported("module", modules, SUPPORTED_MODULES, path)
    return modules


def _pooling(raw: Mapping[str, Any], folder: Path) -> tuple[str, ...]:
    modes = raw.get("pooling_mode") or [mode for key, mode in _LEGACY_MODES.items() if raw.get(key)] or ["mean"]
    names = (modes,) if isinstance(modes, str) else tuple(map(str, modes))
    _check_supported("pooling", names, _POOLINGS, folder)
    return names


def _check_supported(kind: str, names: Iterable[str], supported: Collection[str], where: Path) -> None:
    unknown = next((name for name in names if name not in supported), None)
    if unknown is not None:
        what, hint = f"the {kind} '{unknown}' is not supported", f"Supported: {', '.join(supported)}."
        raise ToolkitError(what, str(where), hint, code="unsupported_architecture")


def _default_prompt(raw: Mapping[str, Any]) -> str:
    prompts = raw.get("prompts")
    prompt = prompts.get(raw.get("default_prompt_name")) if isinstance(prompts, dict) else None
    return prompt if isinstance(prompt, str) else ""


# Poolings take one text's hidden states [L, N] in float32 and give [N].
_POOLINGS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "cls": lambda x: x[0],
    "max": lambda x: x.max(dim=0).values,
    "mean": lambda x: x.mean(dim=0),
    "mean_sqrt_len_tokens": lambda x: x.sum(dim=0) / len(x) ** 0.5,
    "weightedmean": lambda x: (x * _ramp(x)).sum(dim=0) / _ramp(x).sum(),
    "lasttoken": lambda x: x[-1],
}


def _ramp(x: Tensor) -> Tensor:
    return torch.arange(1, len(x) + 1, device=x.device, dtype=x.dtype)[:, None]


class SentenceTokenizer:
    """Texts to ids with the model's marks, cut to ``max_length``. Safe to use from several threads."""

    def __init__(self, tokenizer: tokenizers.Tokenizer, config: SentenceConfig, max_length: int) -> None:
        tokenizer.no_padding()
        tokenizer.enable_truncation(max_length)
        if config.lower_case:
            first = [tokenizers.normalizers.Lowercase()]
            rest = [] if tokenizer.normalizer is None else [tokenizer.normalizer]
            tokenizer.normalizer = tokenizers.normalizers.Sequence(first + rest)
        self._tokenizer = tokenizer
        self._prompt = config.default_prompt
        self.max_length = max_length

    @classmethod
    def load(cls, config: SentenceConfig, max_length: int) -> SentenceTokenizer:
        """The tokenizer of a folder. Raises: ToolkitError."""
        folder = config.encoder_dir
        said = read_json_if_there(folder / "tokenizer_config.json").get("model_max_length")
        if config.max_seq_length is None and isinstance(said, int):
            max_length = min(max_length, said)
        return cls(read_tokenizer(folder), config, max_length)

    def encode(self, texts: Sequence[str]) -> list[Tokens]:
        """The ids of each text."""
        encodings = self._tokenizer.encode_batch([self._prompt + text for text in texts])
        return [Tokens(tuple(encoding.ids), bool(encoding.overflowing)) for encoding in encodings]

    def encode_pairs(self, first: str, seconds: Sequence[str]) -> list[Tokens]:
        """The ids of one text with each of others; of a pair that is too long, the longer text is cut."""
        encodings = self._tokenizer.encode_batch([(first, second) for second in seconds])
        return [Tokens(tuple(e.ids), bool(e.overflowing), _second(e.type_ids)) for e in encodings]

    def cut(self, ids: Sequence[int]) -> Tokens:
        """Ids that the client made, cut to the limit."""
        return Tokens(tuple(ids[: self.max_length]), len(ids) > self.max_length)


def _second(type_ids: Sequence[int]) -> int | None:
    return type_ids.index(1) if 1 in type_ids else None


class SentenceEncoder:
    """Embeds texts of token ids with an attention path that has proven to run."""

    def __init__(self, encoder: Encoder, config: SentenceConfig, attention: Attention) -> None:
        self._encoder = encoder
        self._config = config
        self.attention = attention

    @property
    def max_length(self) -> int:
        """The longest text in tokens: what the folder says, within what the encoder has positions for."""
        limit = self._encoder.config.max_length
        return min(limit, self._config.max_seq_length or limit)

    @property
    def dimension(self) -> int:
        """The length of an embedding."""
        return self._encoder.config.hidden * len(self._config.pooling)

    @property
    def vocab_size(self) -> int:
        """Token ids are below this."""
        return self._encoder.config.vocab_size

    @property
    def normalizes(self) -> bool:
        """True when embeddings have length 1."""
        return self._config.normalize

    def embed(self, texts: Sequence[Tokens]) -> Tensor:
        """Embeddings [n, dimension], float32 on the CPU, of n texts or pairs in their order."""
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
        by_length = [texts[i] for i in order]
        with torch.inference_mode():
            ids, seconds = [text.ids for text in by_length], [text.second for text in by_length]
            hidden = self._encoder.forward(ids, self.attention, seconds)
            vectors = self._pool(hidden, list(map(len, by_length)))
            result = torch.empty_like(vectors)
            result[torch.tensor(order)] = vectors
            return result

    def _pool(self, hidden: Tensor, lengths: Sequence[int]) -> Tensor:
        texts = torch.split(hidden.float(), list(lengths))
        vectors = torch.stack([torch.cat([_POOLINGS[name](x) for name in self._config.pooling]) for x in texts])
        return (F.normalize(vectors, dim=-1) if self._config.normalize else vectors).cpu()


def load_encoder(
    config: SentenceConfig, device: torch.device, dtype: torch.dtype, on_bytes: Callable[[int], None] = lambda _: None
) -> Encoder:
    """The encoder of a folder, in memory; ``on_bytes`` hears of each tensor read.

    Raises: ToolkitError when the folder is damaged or unsupported.
    """
    sizes = read_encoder_config(config.encoder_dir)
    return Encoder(sizes, Checkpoint(config.encoder_dir, device, dtype, on_bytes))


def choose_attention(encoder: Encoder, asked: str) -> Attention:
    """The asked attention path, or for ``auto`` the first that suits, after it has run on this encoder.

    Raises: ToolkitError when none runs.
    """
    needs = Needs(encoder.device, encoder.dtype, encoder.has_bias)
    reasons = []
    for name in candidates(asked, needs):
        reason = obstacle(name, needs)
        if reason is None:
            attention, reason = _proven(encoder, name)
            if attention is not None:
                return attention
        log.info("attention %s cannot be used: %s", name, reason)
        reasons.append(f"{name}: {reason}")
    raise ToolkitError(
        f"attention '{asked}' cannot be used here: {'; '.join(reasons)}",
        "--attention",
        "Use auto, or sdpa, which runs everywhere.",
        code="attention_unavailable",
    )


def _proven(encoder: Encoder, name: str) -> tuple[Attention | None, str]:
    try:
        attention = Attention(name)
    except (ImportError, OSError) as e:
        return None, f"its library does not load: {e}"
    ids = [0] * min(PROBE_TOKENS, encoder.config.max_length)
    try:
        with torch.inference_mode():
            encoder.forward([ids], attention)
    except Exception as e:  # whatever a kernel raises for sizes it does not take
        return None, f"it does not run this model: {e}"
    return attention, ""
