"""How far a served data type may rightly differ, and what a canary set sees of wrong answers, for one model folder.

    python scripts/measure_canary_bound.py models/smollm2-135m-instruct [--prompts 100]

Answers in bfloat16 and float16 are held against float32: how many differ, and how many differences would count. Then
the long prompts are answered without their first blocks, as if cached blocks or earlier chunks were not read.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from toolkit import canaries
from toolkit.canaries import Answer
from toolkit.serve import answers
from toolkit.warm import prompts

TOKENS = 8


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("model", type=Path)
    flags.add_argument("--prompts", type=int, default=100)
    options = flags.parse_args()
    began_s = time.monotonic()
    plain = answers.load(options.model)
    wanted = canaries.canary_set(
        canaries.PROMPTS[0], tokens_per_block=32, max_num_tokens=512, max_input_len=2048, chunked_prefill=True,
        count=lambda text: len(plain.encode(text)),
    )  # fmt: skip
    texts = [prompts.prompt(4 + seed % 60, seed) for seed in range(options.prompts)]
    with torch.inference_mode():
        right = {each.id: answers.greedy(plain, each.text, TOKENS) for each in wanted}
        others = [answers.greedy(plain, text, TOKENS) for text in texts]
        references = {name: answers.reference(plain, steps) for name, steps in right.items()}
        blind = {each.id: without_blocks(plain, right[each.id], each.min_tokens) for each in wanted[1:]}
        asked = dict(zip(texts, others, strict=True))
        bounds = [held(options.model, dtype, plain, right, asked) for dtype in ("bfloat16", "float16")]
    for name, wrong in blind.items():
        at = canaries.counted_difference(Answer("", wrong), references[name], bounds[0])
        print(f"{name}: its first blocks not read: a difference that counts at token {at} of {references[name].text!r}")
    print(f"leads of the first tokens: { {name: each.margins[0] for name, each in references.items()} }")
    print(f"{time.monotonic() - began_s:.0f} s in all")


def held(model, name, plain, right, asked) -> float:
    """The bound of a data type; prints how many other answers differ in it, and how many differences count."""
    low = answers.load(model)
    low.model.to(getattr(torch, name))
    found = [x for steps in right.values() for x in answers.differences(low, steps)]
    bound, differ, count = canaries.margin_bound(found), 0, 0
    for text, steps in asked.items():
        answer = Answer("", answers.greedy(low, text, TOKENS).tokens)
        reference = answers.reference(plain, steps)
        differ += answer.tokens != reference.tokens
        count += canaries.counted_difference(answer, reference, bound) is not None
    print(
        f"{name}: leads change by {max(found):.3f} at most, so the bound is {bound:.3f}; of {len(asked)} other "
        f"prompts {differ} are answered otherwise than in float32, {count} of them in a way that counts"
    )
    return bound


def without_blocks(plain, steps, tokens: int) -> tuple[int, ...]:
    """The answer to the prompt's end alone: what precedes it, in whole blocks, is not there."""
    kept = list(steps.prompt[tokens - tokens % 32 :])
    ids = torch.tensor([kept])
    done = plain.model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=TOKENS, pad_token_id=0)
    return tuple(done[0, len(kept) :].tolist())


if __name__ == "__main__":
    main()
