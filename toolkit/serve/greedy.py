"""What the uncompiled model answers: the canary's tokens, and logits that a compiled engine is compared with."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from toolkit.errors import ToolkitError
from toolkit.serve.compiled import cache_length
from toolkit.serve.decoder import Decoder

# Logits [vocab] float32 after these tokens.
NextLogits = Callable[[Sequence[int]], Tensor]
LONG_PROMPT_TOKENS = 160
# A step whose two best logits are closer than this may go either way in another order of summation.
TIE = {torch.float32: 1e-3, torch.float16: 0.05, torch.bfloat16: 0.25}


@dataclass(frozen=True)
class GreedyReference:
    """``tokens``: greedy continuation of the canary's prompt, cut before its first tie (``tie_at``).

    ``logits``: float32 [vocab] after ``long_prompt``. ``source``: which model said so.
    """

    tokens: tuple[int, ...]
    tie_at: int | None
    long_prompt: tuple[int, ...]
    logits: Tensor
    source: str


def record(
    answer: NextLogits, source: str, dtype: torch.dtype, prompt: Sequence[int], *, max_tokens: int, longest: int
) -> GreedyReference:
    """The reference of a model for a canary prompt, and for a longer prompt of at most ``longest`` tokens.

    Raises: ToolkitError when the model is undecided about the very first token, so that no answer proves anything.
    """
    tokens: list[int] = []
    tie_at = None
    for step in range(max_tokens):
        best = answer([*prompt, *tokens]).topk(2)
        if float(best.values[0] - best.values[1]) < TIE[dtype]:
            tie_at = step
            break
        tokens.append(int(best.indices[0]))
    if not tokens:
        raise ToolkitError(
            "the model is undecided about the first token after the canary's prompt: any answer could be right",
            hint="Give the recipe another 'canary: {prompt: …}'.",
            code="canary_undecided",
        )
    length = max(1, min(LONG_PROMPT_TOKENS, longest))
    long_prompt = (list(prompt) * (length // len(prompt) + 1))[:length]
    return GreedyReference(tuple(tokens), tie_at, tuple(long_prompt), answer(long_prompt).cpu(), source)


def plain_transformers(model_dir: Path, dtype: torch.dtype, device: str) -> tuple[NextLogits, str] | None:
    """The plain transformers model and its version; None where transformers is not installed."""
    if importlib.util.find_spec("transformers") is None:
        return None
    import transformers  # noqa: PLC0415 - an optional library, and slow to import

    model: Any = transformers.AutoModelForCausalLM.from_pretrained(
        model_dir, dtype=dtype, local_files_only=True, attn_implementation="eager"
    )
    model = model.to(device).eval()

    def answer(tokens: Sequence[int]) -> Tensor:
        logits: Tensor = model(torch.tensor([list(tokens)], device=device), use_cache=False).logits
        return logits[0, -1].float()

    return answer, f"transformers {transformers.__version__}"


def own_model(decoder: Decoder, device: str) -> tuple[NextLogits, str]:
    """The decoder itself, uncompiled, where there is nothing more independent."""
    config = decoder.config

    def answer(tokens: Sequence[int]) -> Tensor:
        shape = (1, config.num_kv_heads, cache_length(len(tokens)), config.head_dim)
        dtype = decoder.embed_tokens.weight.dtype
        caches = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(2 * config.num_layers)]
        start = torch.zeros(1, dtype=torch.int64, device=device)
        counting = torch.arange(len(tokens), device=device)
        return decoder.prefill(torch.tensor(tokens, device=device), start, counting[-1:], counting, caches)

    return answer, "coexist's own model, uncompiled"
