"""The embedding that plain transformers gives for one text on a CPU in float32: what a canary is compared with."""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.errors import ToolkitError

if TYPE_CHECKING:
    from torch import Tensor

# Exit status when this environment has no transformers: the caller may have another environment.
NO_TRANSFORMERS = 4
_POOLING_KEYS = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
}


@dataclass(frozen=True)
class Head:
    """What follows the encoder: ``pooling`` is mean, cls or max; ``max_tokens`` None: the model's own limit."""

    pooling: str = "mean"
    normalize: bool = True
    max_tokens: int | None = None


def read_head(model_dir: Path) -> Head:
    """What ``modules.json`` and its folders say; mean pooling and unit length for a plain encoder.

    Raises: ToolkitError for a module or pooling that is not supported.
    """
    modules = _read(model_dir / "modules.json")
    if not isinstance(modules, list):
        return Head()
    kinds = [str(module.get("type", "")).rpartition(".")[2] for module in modules]
    for kind in kinds:
        if kind not in ("Transformer", "Pooling", "Normalize"):
            raise ToolkitError(
                f"the module '{kind}' is not supported",
                str(model_dir / "modules.json"),
                "Supported: Transformer, Pooling, Normalize.",
                code="unsupported_architecture",
            )
    folder = next((str(m.get("path", "")) for m, kind in zip(modules, kinds, strict=True) if kind == "Pooling"), "")
    limit = _mapping(_read(model_dir / "sentence_bert_config.json")).get("max_seq_length")
    return Head(
        pooling=_pooling(model_dir / folder / "config.json"),
        normalize="Normalize" in kinds,
        max_tokens=limit if isinstance(limit, int) else None,
    )


def embed(model_dir: Path, text: str, head: Head) -> list[float]:
    """The embedding. This imports torch and transformers."""
    import torch  # noqa: PLC0415 - takes seconds, and reading the head needs neither
    from transformers import AutoModel, AutoTokenizer  # noqa: PLC0415

    tokenizer = AutoTokenizer.from_pretrained(model_dir, local_files_only=True)
    model = AutoModel.from_pretrained(
        model_dir, local_files_only=True, dtype=torch.float32, attn_implementation="eager", use_safetensors=True
    ).eval()
    tokens = tokenizer(text, return_tensors="pt", truncation=True, max_length=head.max_tokens)
    with torch.inference_mode():
        states = model(**tokens).last_hidden_state[0]
    vector = _pool(states, head.pooling)
    if head.normalize:
        vector = vector / vector.norm()
    return [float(x) for x in vector]


def _pool(states: Tensor, pooling: str) -> Tensor:
    """One vector of the token states [tokens, hidden]; one text has no padding."""
    if pooling == "cls":
        return states[0]
    return states.amax(dim=0) if pooling == "max" else states.mean(dim=0)


def _pooling(path: Path) -> str:
    asked = [key for key, value in _mapping(_read(path)).items() if key.startswith("pooling_mode_") and value is True]
    if len(asked) != 1 or asked[0] not in _POOLING_KEYS:
        raise ToolkitError(
            f"the pooling {' + '.join(asked) or 'of this model'} is not supported",
            str(path),
            f"Supported is one of {', '.join(_POOLING_KEYS)}.",
            code="unsupported_architecture",
        )
    return _POOLING_KEYS[asked[0]]


def _read(path: Path) -> Any:
    """The JSON in a file; None when there is none."""
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise ToolkitError(f"is damaged: {error}", str(path), "Fetch the model again.", code="damaged_model") from error


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def main(argv: Sequence[str]) -> int:
    """Prints one JSON object (``prompt``, ``vector``, ``source``) and returns 0; 1: see standard error."""
    flags = argparse.ArgumentParser(prog="run.py reference", allow_abbrev=False)
    flags.add_argument("--model-dir", type=Path, required=True)
    flags.add_argument("--prompt", required=True)
    options = flags.parse_args(argv)
    if importlib.util.find_spec("transformers") is None:
        sys.stderr.write("error: transformers is not installed in this environment\n")
        return NO_TRANSFORMERS
    try:
        vector = embed(options.model_dir, options.prompt, read_head(options.model_dir))
    except (ToolkitError, OSError, ValueError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    source = f"transformers {importlib.metadata.version('transformers')}"
    sys.stdout.write(json.dumps({"prompt": options.prompt, "vector": vector, "source": source}) + "\n")
    return 0
