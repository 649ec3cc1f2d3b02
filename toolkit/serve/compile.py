"""The step of a build that compiles one phase ahead of time: traces it with torch.export, compiles with AOTInductor."""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from toolkit.serve.architecture import decoder_config_of
from toolkit.serve.arguments import without_cudnn_attention
from toolkit.serve.build_model import build_decoder
from toolkit.serve.compiled import read_engine_info
from toolkit.serve.decoder import Decoder
from toolkit.serve.progress import Progress, run_step

PHASES = ("prefill", "decode")
# Sizes to trace with: any that are different, so that none is taken for another, and not 0 or 1.
_TRACED_TOKENS, _TRACED_ROWS, _TRACED_KEYS = 7, 3, 11


class PrefillGraph(nn.Module):
    """``Decoder.prefill`` as the module that is traced."""

    def __init__(self, model: Decoder) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, tokens: Tensor, start: Tensor, last: Tensor, key_positions: Tensor, caches: list[Tensor]
    ) -> Tensor:
        return self.model.prefill(tokens, start, last, key_positions, caches)


class DecodeGraph(nn.Module):
    """``Decoder.decode`` as the module that is traced."""

    def __init__(self, model: Decoder) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, positions: Tensor, key_positions: Tensor, caches: list[Tensor]) -> Tensor:
        return self.model.decode(tokens, positions, key_positions, caches)


def trace(model: Decoder, info: Mapping[str, Any], phase: str) -> ExportedProgram:
    """The phase's graph, with dynamic prompt length, number of rows and number of keys looked at."""
    limits, device = info["limits"], info["device"]
    span = Dim("span", min=2, max=limits["max_seq_len"])
    keys = torch.arange(min(_TRACED_KEYS, limits["max_seq_len"]), device=device)
    if phase == "decode":
        size = min(_TRACED_ROWS, limits["max_batch_size"])
        rows = Dim("rows", min=1, max=limits["max_batch_size"]) if size > 1 else None
        dynamic = {0: rows} if rows else None
        tokens = torch.zeros(size, dtype=torch.int64, device=device)
        inputs: tuple[Any, ...] = (tokens, torch.arange(size, device=device), keys)
        caches = traced_caches(info, size)
        shapes: tuple[Any, ...] = (dynamic, dynamic, {0: span}, [dynamic] * len(caches))
        module: nn.Module = DecodeGraph(model)
    else:
        length = Dim("tokens", min=1, max=limits["max_input_len"])
        prompt = torch.zeros(min(_TRACED_TOKENS, limits["max_input_len"]), dtype=torch.int64, device=device)
        inputs = (prompt, torch.zeros(1, dtype=torch.int64, device=device), keys[:1], keys)
        caches = traced_caches(info, 1)
        shapes = ({0: length}, None, None, {0: span}, [None] * len(caches))
        module = PrefillGraph(model)
    with torch.no_grad():
        return torch.export.export(
            module,
            (*inputs, caches),
            dynamic_shapes=shapes,
            strict=False,
            # On CUDA some guards hold for every length, but the solver cannot prove it: they are checked at run time.
            prefer_deferred_runtime_asserts_over_guards=True,
        )


def traced_caches(info: Mapping[str, Any], rows: int) -> list[Tensor]:
    """KV caches of so many rows, key and value by layer."""
    kv = info["kv_cache"]
    shape = (rows, kv["heads"], kv["length"], kv["head_dim"])
    dtype = getattr(torch, info["dtype"])
    return [torch.zeros(shape, dtype=dtype, device=info["device"]) for _ in range(2 * kv["layers"])]


def inductor_options(fmha: str, device: str, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Inductor's configuration; what the recipe asks for comes last."""
    options: dict[str, Any] = {
        # Weights stay in one file that both packages share.
        "aot_inductor.package_constants_in_so": False,
        # The wrapper only calls kernels: -O1 takes 18 s longer for 30 layers and decodes no faster.
        "aot_inductor.compile_wrapper_opt_level": "O0",
    }
    if device == "cuda":
        # No kernel of a GPU uses the processor's vectors, and trying each of their kinds takes most of a compile.
        options["cpp.vec_isa_ok"] = False
    if fmha == "disable":
        # The pattern matcher turns plain attention back into the fused operator.
        options["pattern_matcher"] = False
    return {**options, **asked}


def compile_phase(options: argparse.Namespace, progress: Progress) -> Mapping[str, Any]:
    """What was made: ``PHASE.pt2`` in the engine's folder.

    Raises: ToolkitError when the folder was not prepared.
    """
    info = read_engine_info(options.engine_dir)
    without_cudnn_attention()  # the traced graph names the kernel that was chosen
    with progress.step(f"load model for {options.phase}"):
        model = build_decoder(options.engine_dir, decoder_config_of(info["decoder"]), info, packed=info["packed"])
    with progress.step(f"export {options.phase}"):
        program = trace(model, info, options.phase)
    package = options.engine_dir / f"{options.phase}.pt2"
    with progress.step(f"compile {options.phase}"):
        torch._inductor.aoti_compile_and_package(
            program,
            package_path=str(package),
            inductor_configs=inductor_options(info["fmha"], info["device"], dict(options.inductor)),
        )
    return {"package": package.name, "bytes": package.stat().st_size}


def _setting(text: str) -> tuple[str, Any]:
    name, _, value = text.partition("=")
    return name, json.loads(value)


def main(argv: Sequence[str]) -> int:
    """The exit status: 0 when the package is there."""
    flags = argparse.ArgumentParser(prog="run.py compile", allow_abbrev=False)
    flags.add_argument("--engine-dir", type=Path, required=True)
    flags.add_argument("--phase", choices=PHASES, required=True)
    flags.add_argument("--inductor", type=_setting, action="append", default=[], metavar="NAME=JSON")
    flags.add_argument("--progress-fd", type=int)
    options = flags.parse_args(argv)
    progress = Progress(options.progress_fd)
    warnings.simplefilter("ignore", FutureWarning)
    return run_step(progress, lambda: compile_phase(options, progress))
