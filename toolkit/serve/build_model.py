"""The uncompiled decoder with an engine's weights in it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from toolkit.serve.architecture import DecoderConfig
from toolkit.serve.decoder import Decoder
from toolkit.serve.weights import load_tensors


def build_decoder(engine_dir: Path, config: DecoderConfig, info: Mapping[str, Any], *, packed: bool = False) -> Decoder:
    """The decoder of an engine folder, on the engine's device and in its dtype, ready to be called or traced."""
    tensors = {
        name.removeprefix("model."): t
        for name, t in load_tensors(engine_dir / "model.safetensors", info["device"]).items()
    }
    if packed and config.tied_embeddings:
        tensors["lm_head.weight"] = tensors["embed_tokens.weight"].clone()  # shared, the tracer would take them for one
    with torch.device("meta"):
        decoder = Decoder(config, info["limits"]["max_seq_len"], info["fmha"], packed=packed)
    decoder.load_state_dict(tensors, assign=True)
    return decoder.requires_grad_(requires_grad=False).eval()
