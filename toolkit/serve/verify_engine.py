"""The last step of a build: a fresh process loads the engine, compiles nothing, and must answer as the model did."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from toolkit.errors import ToolkitError
from toolkit.serve.compiled import CompiledEngine
from toolkit.serve.progress import Progress, run_step

# Relative error (L2) of logits after a longer prompt: the summation order differs, the mathematics does not.
# Read with a 135M Llama: float32 5e-7, bfloat16 0.007.
TOLERANCE = {"float32": 1e-3, "float16": 2e-2, "bfloat16": 5e-2}
COMPILERS = ("torch._inductor", "torch._dynamo", "triton")


def greedy(engine: CompiledEngine, slots: Sequence[int], prompt: Sequence[int], count: int) -> list[list[int]]:
    """By slot the first ``count`` tokens, all slots decoding together; the slots are free afterwards."""
    tokens = {slot: [int(engine.prefill(slot, prompt).argmax())] for slot in slots}
    for _ in range(count - 1):
        logits = engine.decode(slots, [tokens[slot][-1] for slot in slots])
        for slot, row in zip(slots, logits, strict=True):
            tokens[slot].append(int(row.argmax()))
    for slot in slots:
        engine.release(slot)
    return [tokens[slot] for slot in slots]


def relative_error(got: Tensor, expected: Tensor) -> float:
    """The L2 norm of the difference over that of ``expected``."""
    return float((got - expected).norm() / expected.norm())


def check_canary(engine: CompiledEngine) -> None:
    """Raises ToolkitError unless the canary comes out right, in one slot alone and in all slots together."""
    canary = engine.info["canary"]
    expected = canary["tokens"]
    for slots in ([0], list(range(engine.max_batch_size))):
        for slot, got in zip(slots, greedy(engine, slots, canary["prompt_tokens"], len(expected)), strict=True):
            if got != expected:
                raise ToolkitError(
                    f"the compiled engine answers the canary with tokens {got}, the model with {expected}",
                    f"slot {slot} of {len(slots)}",
                    "Report this with the build log; 'options: {inductor: {…}}' can turn single optimisations off.",
                    code="canary_wrong",
                    expected=expected,
                    got=got,
                )


def check_logits(engine: CompiledEngine, reference: Path) -> float:
    """The relative error of the logits after the longer prompt.

    Raises: ToolkitError when it is over the dtype's tolerance.
    """
    expected = torch.from_numpy(np.load(reference, allow_pickle=False))
    got = engine.prefill(0, engine.info["verify"]["long_prompt"]).cpu()
    engine.release(0)
    error = relative_error(got, expected)
    tolerance = TOLERANCE[engine.info["dtype"]]
    if not error <= tolerance:
        raise ToolkitError(
            f"logits of the compiled engine are off by {error:.2g} (relative), over {tolerance:.2g}",
            hint="Report this with the build log; 'dtype: float32' in the recipe may help meanwhile.",
            code="logits_wrong",
        )
    return error


def verify(options: argparse.Namespace, progress: Progress) -> Mapping[str, Any]:
    """Seconds by part of loading, and how close the answers are.

    Raises: ToolkitError when the engine does not load, compiles something or answers wrongly.
    """
    parts: dict[str, float] = {}
    with progress.step("load in a fresh process"):
        engine = CompiledEngine.load(options.engine_dir, options.device, parts.__setitem__)
    with progress.step("check answers"):
        check_canary(engine)
        error = check_logits(engine, options.reference) if options.reference else None
    if loaded := [name for name in COMPILERS if name in sys.modules]:
        raise ToolkitError(f"serving the engine imported a compiler: {', '.join(loaded)}", code="compiles")
    return {"load_seconds": {name: round(seconds, 3) for name, seconds in parts.items()}, "logits_error": error}


def main(argv: Sequence[str]) -> int:
    """The exit status: 0 when the engine answers as the model did."""
    flags = argparse.ArgumentParser(prog="run.py verify", allow_abbrev=False)
    flags.add_argument("--engine-dir", type=Path, required=True)
    flags.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    flags.add_argument("--reference", type=Path)
    flags.add_argument("--progress-fd", type=int)
    options = flags.parse_args(argv)
    progress = Progress(options.progress_fd)
    return run_step(progress, lambda: verify(options, progress))
