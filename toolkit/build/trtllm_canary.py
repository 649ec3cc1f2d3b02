"""The canary set that an engine of TensorRT-LLM carries in its manifest, recorded when it is built."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from toolkit import canaries
from toolkit.build import answers, reference, trtllm_guards
from toolkit.build.steps import Report
from toolkit.build.trtllm_options import Asked
from toolkit.build.trtllm_readback import EngineConfig
from toolkit.canaries import Reach
from toolkit.config import load
from toolkit.errors import ToolkitError
from toolkit.runtimes.trtllm_guards import CHUNKED_PREFILL
from toolkit.store import Store

# What a deployment that serves the engine would ask a block for, where its config does not say.
_BLOCK_TOKENS = 32
_NO_MODEL = "its recipe names no 'model'"


def reach(engine: EngineConfig, max_tokens: int) -> Reach | None:
    """How far prompts must reach in this engine; None: its config does not tell its limits."""
    limits = engine.limits
    if "max_input_len" not in limits or "max_num_tokens" not in limits:
        return None
    chunked = trtllm_guards.features(engine)[CHUNKED_PREFILL]
    longest = [limits["max_input_len"], limits.get("max_seq_len", limits["max_input_len"] + max_tokens) - max_tokens]
    block = engine.plugin("tokens_per_block")
    return Reach(
        block if type(block) is int else _BLOCK_TOKENS,
        limits["max_num_tokens"],
        max(1, min(longest if chunked else [*longest, limits["max_num_tokens"]])),
        chunked,
    )


def unrecordable(asked: Asked) -> str | None:
    """Why no right answers can be recorded with the engine, as far as that is seen before it is built; None: they may.

    Of an engine with fused attention, or whose canary says what is expected, none are needed.
    """
    if not asked.unfused or asked.recipe.canary.expected is not None:
        return None
    if asked.recipe.model is None:
        return _NO_MODEL
    quantized = asked.checkpoint.quant_algo or asked.checkpoint.kv_quant_algo
    return _quantized(quantized) if quantized else None


def _quantized(how: str) -> str:
    return f"by how much a quantised engine ({how}) rightly differs from its model is not known"


def record(
    asked: Asked, engine: EngineConfig, python: Path, store: Store, report: Report
) -> tuple[Mapping[str, Any] | None, str]:
    """The set with its right answers as a document, or None, and a note that says which.

    An engine without one is whole all the same: its deployment records the set, or says what is expected.
    """
    try:
        made = answers.ensure(
            _question(asked, engine),
            (python, Path(sys.executable)),
            store.root / "references",
            available_bytes=psutil.virtual_memory().available,
            hash_cache=store.hash_cache,
            run=reference.run_child,
            report=report,
        )
    except ToolkitError as fault:
        return None, f"no right answers are recorded with it: {fault.details.get('why', fault.what)}"
    prompts = ", ".join(prompt["id"] for prompt in made["prompts"])
    return made, f"right answers ({prompts}) come from {made['source']}; a lead above {made['bound']:.3g} counts"


def _question(asked: Asked, engine: EngineConfig) -> answers.Asked:
    canary = asked.recipe.canary
    needed = reach(engine, max(canary.max_tokens, canaries.MAX_TOKENS))
    if asked.recipe.model is None:
        raise ToolkitError(_NO_MODEL)
    if engine.quantization:
        raise ToolkitError(_quantized(", ".join(str(value) for value in engine.quantization.values())))
    if needed is None:
        raise ToolkitError("its config does not tell its limits")
    prompts = (canary.prompt,) if canary.model_fields_set & {"prompt", "expected"} else canaries.PROMPTS
    dtype = engine.dtype or asked.checkpoint.dtype
    return answers.Asked(
        load.resolve(asked.loaded.file, asked.recipe.model), prompts, canary.max_tokens, needed,
        dtype if dtype in answers.DTYPES else "bfloat16",
    )  # fmt: skip
