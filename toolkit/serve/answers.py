"""What plain transformers answer to a canary set on a CPU in float32, and how far the served data type may differ."""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import inspect
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit import canaries
from toolkit.canaries import CanaryPrompt, CanarySet, Reference
from toolkit.errors import ToolkitError
from toolkit.serve.reference import NO_TRANSFORMERS

if TYPE_CHECKING:
    from torch import Tensor

# Tokens that can become the best: by how much the best leads each of them is what the bound is measured on.
_BEST = 16
# Twice the bound that was measured for a small model in bfloat16, see docs/readings.md.
_SURE = 1.0
_UNFINISHED = "\ufffd"


@dataclass(frozen=True)
class Plain:
    """The plain model, its tokenizer, and the tokens that end an answer."""

    model: Any
    tokenizer: Any
    ends: frozenset[int]

    def encode(self, text: str) -> list[int]:
        """The prompt's tokens, as a server makes them."""
        return list(self.tokenizer(text)["input_ids"])

    def decode(self, tokens: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(tokens), skip_special_tokens=True))


@dataclass(frozen=True)
class Steps:
    """A greedy answer: the prompt's tokens, the answer's before any end, and the logits [steps, vocab] behind it."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    logits: Tensor


def load(model_dir: Path) -> Plain:
    """The model in float32, which answers greedily and by its logits alone. This imports torch and transformers."""
    import torch  # noqa: PLC0415 - takes seconds
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig  # noqa: PLC0415

    tokenizer = AutoTokenizer.from_pretrained(model_dir, local_files_only=True)
    model = AutoModelForCausalLM.from_pretrained(
        model_dir, local_files_only=True, dtype=torch.float32, attn_implementation="sdpa", use_safetensors=True
    )
    ends = end_tokens(getattr(model.generation_config, "eos_token_id", None), tokenizer.eos_token_id)
    model.generation_config = GenerationConfig(do_sample=False)
    return Plain(model.eval(), tokenizer, ends)


def end_tokens(*named: Any) -> frozenset[int]:
    """The tokens named, each of which may be none, one or several."""
    several = (each if isinstance(each, (list, tuple)) else (each,) for each in named)
    return frozenset(token for tokens in several for token in tokens if token is not None)


def greedy(plain: Plain, text: str, max_tokens: int) -> Steps:
    """The model's answer, before any end of it."""
    import torch  # noqa: PLC0415 - takes seconds

    prompt = plain.encode(text)
    done = plain.model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        max_new_tokens=max_tokens,
        eos_token_id=sorted(plain.ends) or None,
        pad_token_id=0,
        return_dict_in_generate=True,
        output_logits=True,
    )
    answered = done.sequences[0, len(prompt) :].tolist()
    tokens = answered[: next((at for at, token in enumerate(answered) if token in plain.ends), len(answered))]
    return Steps(tuple(prompt), tuple(tokens), torch.cat(done.logits)[: len(tokens)].float())


def reference(plain: Plain, steps: Steps) -> Reference:
    """The right answer: tokens, leads, and the text with what each token settles of it."""
    margins = [float(best[0] - best[1]) for best in steps.logits.topk(2).values] if steps.tokens else []
    text = plain.decode(steps.tokens).rstrip(_UNFINISHED)
    shown = [plain.decode(steps.tokens[: at + 1]).rstrip(_UNFINISHED) for at in range(len(steps.tokens))]
    return Reference(steps.tokens, tuple(round(margin, 4) for margin in margins), text, tuple(settled(shown, text)))


def settled(shown: Sequence[str], text: str) -> Iterator[int]:
    """For each text on the way to ``text``, how many characters of it are there for good. Pure."""
    known = 0
    for at, partial in enumerate(shown):
        parted = canaries.first_difference(partial, text)
        same = len(partial) if parted is None else min(parted, len(partial))
        known = len(text) if at == len(shown) - 1 else max(known, same)
        yield known


def differences(plain: Plain, steps: Steps) -> list[float]:
    """By how much a lead changes at each step when the model, as it is now, reads the same tokens."""
    import torch  # noqa: PLC0415 - takes seconds

    if not steps.tokens:
        return []
    fed = torch.tensor([[*steps.prompt, *steps.tokens[:-1]]])
    # All logits of a long prompt take gigabytes; models of older releases give them all.
    able = "logits_to_keep" in inspect.signature(plain.model.forward).parameters
    kept = {"logits_to_keep": len(steps.tokens)} if able else {}
    logits = plain.model(fed, use_cache=False, **kept).logits[0, -len(steps.tokens) :].float()
    best = steps.logits.topk(min(_BEST, steps.logits.shape[-1])).indices
    before, after = steps.logits.gather(1, best), logits.gather(1, best)
    changed = (after[:, :1] - after) - (before[:, :1] - before)
    return [float(x) for x in changed.abs().amax(dim=1)]


def first_lead(plain: Plain, text: str) -> float:
    """The lead of the first token after a prompt; 0 where the answer ends at once."""
    return max(reference(plain, greedy(plain, text, 1)).margins, default=0.0)


def surest(prompts: Sequence[str], lead: Callable[[str], float]) -> str:
    """The first prompt that the model is sure about, else the one that it is surest about. Pure."""
    if len(prompts) == 1:
        return prompts[0]
    sure = (prompt for prompt in prompts if lead(prompt) > _SURE)
    return next(sure, None) or max(prompts, key=lead)


def within(
    prompts: Sequence[CanaryPrompt],
    ask: Callable[[CanaryPrompt], Steps],
    budget_s: float,
    now: Callable[[], float] = time.monotonic,
) -> dict[str, Steps]:
    """The answers of as many prompts, in order, as the time allows; a longer one is foreseen from those before it."""
    begin_s, answers, slowest = now(), dict[str, Steps](), 0.0
    for prompt in prompts:
        started_s = now()
        if started_s - begin_s + slowest * prompt.min_tokens > budget_s and answers:
            continue
        answers[prompt.id] = ask(prompt)
        if prompt.min_tokens > 1:
            slowest = max(slowest, (now() - started_s) / prompt.min_tokens)
    return answers


def record(options: argparse.Namespace) -> dict[str, Any]:
    """The canary set as a document, with ``measured``: how the bound came about."""
    import torch  # noqa: PLC0415 - takes seconds

    plain = load(options.model_dir)
    with torch.inference_mode():
        short = surest(options.prompt, lambda text: first_lead(plain, text))
    prompts = canaries.canary_set(
        short,
        tokens_per_block=options.tokens_per_block,
        max_num_tokens=options.max_num_tokens,
        max_input_len=options.max_input_len,
        chunked_prefill=options.chunked_prefill,
        count=lambda text: len(plain.encode(text)),
    )
    prompts = (prompts[0].of(options.max_tokens), *prompts[1:])
    with torch.inference_mode():
        answers = within(prompts, lambda each: greedy(plain, each.text, each.max_tokens), options.budget_s)
        references = {name: reference(plain, steps) for name, steps in answers.items()}
        plain.model.to(getattr(torch, options.dtype))
        measured = {name: differences(plain, steps) for name, steps in answers.items()}
    found = [value for values in measured.values() for value in values]
    source = f"transformers {importlib.metadata.version('transformers')}, float32 on the CPU"
    recorded = canaries.settle(CanarySet(prompts, references, canaries.margin_bound(found), source))
    tokens = {name: len(steps.prompt) for name, steps in answers.items()}
    largest = {name: max(values, default=0.0) for name, values in measured.items()}
    return {
        **canaries.to_document(recorded),
        "measured": {"dtype": options.dtype, "against": "float32", "prompt_tokens": tokens, "largest": largest},
    }


def main(argv: Sequence[str]) -> int:
    """Prints one JSON object and returns 0; 1: see standard error."""
    options = _flags().parse_args(argv)
    if importlib.util.find_spec("transformers") is None:
        sys.stderr.write("error: transformers is not installed in this environment\n")
        return NO_TRANSFORMERS
    try:
        made = record(options)
    except (ToolkitError, OSError, ValueError, RuntimeError, ImportError, MemoryError) as error:
        sys.stderr.write(f"error: {' '.join(str(error).split()) or type(error).__name__}\n")
        return 1
    sys.stdout.write(json.dumps(made) + "\n")
    return 0


def _flags() -> argparse.ArgumentParser:
    flags = argparse.ArgumentParser(prog="run.py answers", allow_abbrev=False)
    flags.add_argument("--model-dir", type=Path, required=True)
    flags.add_argument("--prompt", action="append", required=True, help="several: the surest is taken")
    for name in ("--max-tokens", "--tokens-per-block", "--max-num-tokens", "--max-input-len"):
        flags.add_argument(name, type=int, required=True)
    flags.add_argument("--dtype", choices=("float32", "float16", "bfloat16"), required=True)
    flags.add_argument("--budget-s", type=float, required=True)
    flags.add_argument("--chunked-prefill", action="store_true")
    return flags
