"""The embedding that plain transformers gives for one text on a CPU in float32: what a canary is compared with."""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from toolkit.errors import ToolkitError

if TYPE_CHECKING:
    from torch import Tensor

    from toolkit.serve.sentence import SentenceConfig

# Exit status when this environment has no transformers: the caller may have another environment.
NO_TRANSFORMERS = 4
OWN_SOURCE = "coexist"
# Written anew and not taken from the server, which it judges. Hidden states [tokens, size] of one unpadded text.
_POOLINGS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "cls": lambda states: states[0],
    "max": lambda states: states.amax(dim=0),
    "mean": lambda states: states.sum(dim=0) / states.shape[0],
}


def by_transformers(config: SentenceConfig, text: str) -> list[float]:
    """The embedding as plain transformers compute it. This imports torch and transformers.

    Raises: KeyError for a pooling that only the server knows.
    """
    import torch  # noqa: PLC0415 - takes seconds
    from transformers import AutoModel, AutoTokenizer  # noqa: PLC0415

    pools = [_POOLINGS[name] for name in config.pooling]
    tokenizer = AutoTokenizer.from_pretrained(config.encoder_dir, local_files_only=True)
    model = AutoModel.from_pretrained(
        config.encoder_dir,
        local_files_only=True,
        dtype=torch.float32,
        attn_implementation="eager",
        use_safetensors=True,
    ).eval()
    text = config.default_prompt + (text.lower() if config.lower_case else text)
    tokens = tokenizer(text, return_tensors="pt", truncation=True, max_length=config.max_seq_length)
    with torch.inference_mode():
        states = model(**tokens).last_hidden_state[0]
    vector = torch.cat([pool(states) for pool in pools])
    return [float(x) for x in (vector / vector.norm() if config.normalize else vector)]


def by_own_encoder(config: SentenceConfig, text: str) -> list[float]:
    """The embedding of our own encoder with its plainest attention. This imports torch."""
    import torch  # noqa: PLC0415 - takes seconds

    from toolkit.serve import sentence  # noqa: PLC0415 - imports torch

    weights = sentence.load_encoder(config, torch.device("cpu"), torch.float32)
    encoder = sentence.SentenceEncoder(weights, config, sentence.choose_attention(weights, "vanilla"))
    tokens = sentence.SentenceTokenizer.load(config, encoder.max_length).encode([text])[0]
    return [float(x) for x in encoder.embed([tokens])[0]]


def reference(model_dir: Path, text: str, *, own: bool) -> tuple[list[float], str]:
    """The embedding of ``text`` and what computed it: transformers, or with ``own`` our encoder.

    Raises: ToolkitError, OSError, ValueError when the folder is damaged or not supported.
    """
    from toolkit.serve.sentence import read_sentence_config  # noqa: PLC0415 - imports torch

    config = read_sentence_config(model_dir)
    if own or not set(config.pooling) <= set(_POOLINGS):
        return by_own_encoder(config, text), OWN_SOURCE
    return by_transformers(config, text), f"transformers {importlib.metadata.version('transformers')}"


def main(argv: Sequence[str]) -> int:
    """Prints one JSON object (``prompt``, ``vector``, ``source``) and returns 0; 1: see standard error."""
    flags = argparse.ArgumentParser(prog="run.py reference", allow_abbrev=False)
    flags.add_argument("--model-dir", type=Path, required=True)
    flags.add_argument("--prompt", required=True)
    flags.add_argument("--own", action="store_true", help="use coexist's encoder, where transformers is missing")
    options = flags.parse_args(argv)
    if not options.own and importlib.util.find_spec("transformers") is None:
        sys.stderr.write("error: transformers is not installed in this environment\n")
        return NO_TRANSFORMERS
    try:
        vector, source = reference(options.model_dir, options.prompt, own=options.own)
    except (ToolkitError, OSError, ValueError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    sys.stdout.write(json.dumps({"prompt": options.prompt, "vector": vector, "source": source}) + "\n")
    return 0
