"""The part of preparing an engine that needs torch: its weights, and what the uncompiled model answers."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from toolkit.errors import ToolkitError
from toolkit.serve.architecture import DecoderConfig
from toolkit.serve.build_model import build_decoder
from toolkit.serve.checkpoint import StoredTensor
from toolkit.serve.compiled import cache_length
from toolkit.serve.decoder import rope_table
from toolkit.serve.greedy import GreedyReference, own_model, plain_transformers, record
from toolkit.serve.packing import can_pack
from toolkit.serve.tokenizer import TextTokenizer
from toolkit.serve.weight_map import weight_map
from toolkit.serve.weights import CheckpointReader, write_tensors

__all__ = ["cache_length", "can_pack", "record_reference", "write_weights"]


def write_weights(
    config: DecoderConfig, found: Mapping[str, StoredTensor], dtype_name: str, max_seq_len: int, path: Path
) -> None:
    """Leaves the decoder's weights in this dtype, under the names that the compiled packages ask for."""
    dtype = getattr(torch, dtype_name)
    table = rope_table(config.rope, config.head_dim, max_seq_len + 1)
    weights = weight_map(config)
    shapes: dict[str, tuple[tuple[int, ...], torch.dtype]] = {"model.rope": (tuple(table.shape), table.dtype)}
    for name, sources in weights.items():
        rows = sum(source.shape[0] for source in sources)
        shapes[f"model.{name}"] = ((rows, *sources[0].shape[1:]), dtype)
    with CheckpointReader(found) as reader:
        write_tensors(path, shapes, _in_order(table, weights.values(), reader, dtype))


def _in_order(table: Tensor, weights: Any, reader: CheckpointReader, dtype: torch.dtype) -> Iterator[Tensor]:
    yield table
    for sources in weights:
        yield reader.joined(sources, dtype)


def record_reference(
    config: DecoderConfig, info: Mapping[str, Any], options: argparse.Namespace
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The ``canary`` and ``verify`` parts of ``engine.json``; the logits go to ``options.reference``.

    Raises: ToolkitError when the prompt does not fit, or the model's answer is not the expected one.
    """
    tokenizer = TextTokenizer.load(options.engine_dir)
    prompt = tokenizer.encode(options.canary_prompt)
    max_tokens = min(options.canary_tokens, options.max_seq_len - len(prompt))
    if not prompt or len(prompt) > options.max_input_len or max_tokens < 1:
        raise ToolkitError(
            f"the canary's prompt has {len(prompt)} tokens, which does not fit the limits",
            "canary.prompt",
            "Use a prompt that leaves room for an answer.",
            code="canary",
        )
    dtype = getattr(torch, info["dtype"])
    longest = min(options.max_input_len, options.max_seq_len - 1)
    with torch.no_grad():
        known = plain_transformers(options.model, dtype, options.device)
        answer, source = known or own_model(build_decoder(options.engine_dir, config, info), options.device)
        reference = record(answer, source, dtype, prompt, max_tokens=max_tokens, longest=longest)
    np.save(options.reference, reference.logits.numpy(), allow_pickle=False)
    text = tokenizer.decode(reference.tokens)
    _check_expected(text, options)
    return _canary(reference, prompt, text, options), {"long_prompt": list(reference.long_prompt)}


def _check_expected(text: str, options: argparse.Namespace) -> None:
    expected = options.canary_expected
    if expected is not None and not text.strip().startswith(expected.strip()):
        raise ToolkitError(
            f"the uncompiled model answers {text!r}, not {expected!r}",
            "canary.expected",
            "Correct what the recipe expects, or choose another prompt.",
            code="canary",
        )


def _canary(
    reference: GreedyReference, prompt: tuple[int, ...], text: str, options: argparse.Namespace
) -> dict[str, Any]:
    return {
        "prompt": options.canary_prompt,
        "prompt_tokens": list(prompt),
        "tokens": list(reference.tokens),
        "text": text,
        "source": reference.source,
        "tie_at": reference.tie_at,
    }
