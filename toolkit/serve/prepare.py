"""The first step of a build: checks the model, writes weights, ``engine.json`` and the reference answers."""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from toolkit.errors import ToolkitError
from toolkit.serve.architecture import DecoderConfig, read_decoder_config
from toolkit.serve.checkpoint import StoredTensor, check_tensors, read_checkpoint
from toolkit.serve.facts import compute_capability, package_versions
from toolkit.serve.isa import cpu_features
from toolkit.serve.model_files import ENGINE_FORMAT
from toolkit.serve.progress import Progress, run_step
from toolkit.serve.weight_map import expected_shapes, weight_map
from toolkit.units import GIB, format_bytes

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")
# Processors with one of these multiply bfloat16 matrices directly; without, float32 is faster.
# Read on an EPYC with avx512_bf16: a decode step's products take 11 ms in bfloat16 and 33 ms in float32.
_FAST_BFLOAT16 = {"avx512_bf16", "amx_bf16", "bf16"}
# Scores of one layer in prefill without fused attention; more than this crowds out the model itself.
MAX_UNFUSED_WORKSPACE_BYTES = 2 * GIB


def choose_dtype(asked: str, model_dtype: str | None, device: str, features: Sequence[str]) -> str:
    """The dtype that ``auto`` means: the model's own, except that the CPU gets what it multiplies fastest."""
    if asked != "auto":
        return asked
    own = model_dtype or "float32"
    if device != "cpu" or own == "float32":
        return own
    return "bfloat16" if own == "bfloat16" and _FAST_BFLOAT16 & set(features) else "float32"


def unfused_workspace_bytes(num_heads: int, max_input_len: int) -> int:
    """Bytes of one layer's scores in prefill: float32 and their softmax, by the square of the length."""
    return 2 * 4 * num_heads * max_input_len**2


def check_limits(config: DecoderConfig, options: Any) -> None:
    """Raises ToolkitError when the model has fewer positions, or unfused attention would need too much memory."""
    if options.max_seq_len > config.max_position_embeddings:
        raise ToolkitError(
            f"limits.max_seq_len {options.max_seq_len} is over the model's {config.max_position_embeddings} positions",
            str(options.model / "config.json"),
            "Lower limits.max_seq_len in the recipe.",
            code="limits",
        )
    needed = unfused_workspace_bytes(config.num_heads, options.max_input_len)
    if options.fmha == "disable" and needed > MAX_UNFUSED_WORKSPACE_BYTES:
        fits = int((MAX_UNFUSED_WORKSPACE_BYTES / (8 * config.num_heads)) ** 0.5)
        raise ToolkitError(
            f"without fused attention a prompt of {options.max_input_len} tokens takes {format_bytes(needed)}",
            "limits.max_input_len",
            f"Lower it to at most {fits}, or use fmha: enable.",
            code="limits",
            needed=needed,
            available=MAX_UNFUSED_WORKSPACE_BYTES,
        )


def engine_info(config: DecoderConfig, options: Any, dtype: str, *, cache_len: int, packed: bool) -> dict[str, Any]:
    """The content of ``engine.json``, its canary still missing; ``packed``: products take packed weights."""
    versions = package_versions()
    return {
        "format": ENGINE_FORMAT,
        "architecture": config.architecture,
        "vocab_size": config.vocab_size,
        "eos_token_ids": list(config.eos_token_ids),
        "dtype": dtype,
        "device": options.device,
        "fmha": options.fmha,
        "packed": packed,
        "limits": {name: getattr(options, name) for name in ("max_batch_size", "max_input_len", "max_seq_len")},
        "kv_cache": {
            "layers": config.num_layers,
            "heads": config.num_kv_heads,
            "length": cache_len,
            "head_dim": config.head_dim,
            "block_tokens": options.block_tokens,
            "reuse": options.reuse_prefixes == "on",
        },
        "unfused_workspace_bytes": unfused_workspace_bytes(config.num_heads, options.max_input_len),
        "decoder": asdict(config),
        "built_with": {"torch": versions["torch"], "triton": versions["triton"]},
        "cpu_features": list(cpu_features()),
        "compute_capability": compute_capability() if options.device == "cuda" else None,
    }


def main(argv: Sequence[str]) -> int:
    """The exit status: 0 when the folder holds everything but the compiled packages."""
    options = _parse(argv)
    progress = Progress(options.progress_fd)
    return run_step(progress, lambda: prepare(options, progress))


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    flags = argparse.ArgumentParser(prog="run.py prepare", allow_abbrev=False)
    flags.add_argument("--model", type=Path, required=True)
    flags.add_argument("--engine-dir", type=Path, required=True)
    flags.add_argument("--reference", type=Path, required=True, help="file for the logits that verify compares with")
    flags.add_argument("--fmha", choices=["enable", "disable"], default="enable")
    flags.add_argument("--dtype", choices=["auto", "float32", "float16", "bfloat16"], default="auto")
    flags.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    flags.add_argument("--reuse-prefixes", choices=["on", "off"], default="off")
    for name in ("max-batch-size", "max-input-len", "max-seq-len", "canary-tokens", "block-tokens"):
        flags.add_argument(f"--{name}", type=int, required=True)
    flags.add_argument("--canary-prompt", required=True)
    flags.add_argument("--canary-expected")
    flags.add_argument("--progress-fd", type=int)
    return flags.parse_args(argv)


def prepare(options: argparse.Namespace, progress: Progress) -> Mapping[str, Any]:
    """What the engine will be; its folder then holds weights, tokenizer and ``engine.json``.

    Raises: ToolkitError when the model, its weights, its tokenizer or the limits are not right; OSError.
    """
    with progress.step("check model"):
        config = read_decoder_config(options.model)
        check_limits(config, options)
        found = read_checkpoint(options.model)
        check_tensors(found, expected_shapes(weight_map(config)), options.model)
        _copy_tokenizer(options.model, options.engine_dir)
    return _with_torch(config, found, options, progress)


def _copy_tokenizer(model_dir: Path, engine_dir: Path) -> None:
    if not (model_dir / TOKENIZER_FILES[0]).is_file():
        raise ToolkitError(
            f"{TOKENIZER_FILES[0]} is missing",
            str(model_dir),
            "Save the model with a fast tokenizer.",
            code="tokenizer",
        )
    for name in TOKENIZER_FILES:
        if (model_dir / name).is_file():
            shutil.copyfile(model_dir / name, engine_dir / name)


def _with_torch(
    config: DecoderConfig, found: Mapping[str, StoredTensor], options: argparse.Namespace, progress: Progress
) -> Mapping[str, Any]:
    with progress.step("import torch"):
        from toolkit.serve import preparation  # noqa: PLC0415 - what is wrong with the files is said before torch loads
    dtype = choose_dtype(options.dtype, config.dtype, options.device, cpu_features())
    with progress.step("write weights"):
        preparation.write_weights(config, found, dtype, options.max_seq_len, options.engine_dir / "model.safetensors")
    packed = preparation.can_pack(options.device, dtype)
    info = engine_info(config, options, dtype, cache_len=preparation.cache_length(options.max_seq_len), packed=packed)
    with progress.step("record canary"):
        info["canary"], info["verify"] = preparation.record_reference(config, info, options)
    (options.engine_dir / "engine.json").write_text(json.dumps(info, indent=1) + "\n", encoding="utf-8")
    return info
