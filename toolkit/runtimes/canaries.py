"""The canary set of an engine: prompts that reach what a guard guards, and when two answers really differ. Pure.

One prompt proves little: it never reads a cached block, never starts behind another chunk.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

# Each is one token or more in any tokenizer, so that so many words are at least so many tokens.
_WORDS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_OTHER_SUFFIX = " And now something else:"
_SUFFIX = " What comes next?"
# For words such as these, tokenizers of today take at most so many tokens each.
_TOKENS_PER_WORD = 2


@dataclass(frozen=True)
class CanaryPrompt:
    """One prompt, sent ``times`` in a row. ``guard``: what to look at when its answer is wrong.

    ``min_tokens``: what it must have to reach what it is for; who knows the tokenizer checks it.
    """

    id: str
    text: str
    times: int
    min_tokens: int
    guard: str


@dataclass(frozen=True)
class Reference:
    """The right answer: greedy tokens, and by how much the best logit led the second at each."""

    tokens: tuple[int, ...]
    margins: tuple[float, ...]


@dataclass(frozen=True)
class CanarySet:
    """The prompts of one engine with their right answers, by prompt id; ``bound``: the lead that counts as one.

    ``source``: where the answers come from (plain transformers, or a fused engine of the same checkpoint).
    """

    prompts: tuple[CanaryPrompt, ...]
    references: Mapping[str, Reference]
    bound: float
    source: str


@dataclass(frozen=True)
class Mismatch:
    """A wrong answer: it vetoes READY, and names the guard to look at."""

    id: str
    guard: str
    what: str


def canary_set(
    prompt: str,
    *,
    tokens_per_block: int,
    max_num_tokens: int,
    max_input_len: int,
    chunked_prefill: bool,
) -> tuple[CanaryPrompt, ...]:
    """The prompts of an engine: a short one; one over two blocks, twice; its prefix with another suffix; one in chunks.

    What does not fit ``max_input_len`` is left out, and so is the last where chunks are not allowed.
    """
    blocks = 2 * tokens_per_block + 1
    made = [CanaryPrompt("short", prompt, 1, 1, "context_fmha")]
    if _TOKENS_PER_WORD * (blocks + 8) <= max_input_len:
        prefix = _text(blocks)
        made += [
            CanaryPrompt("cached", prefix + _SUFFIX, 2, blocks, "kv_cache_reuse"),
            CanaryPrompt("shared_prefix", prefix + _OTHER_SUFFIX, 1, blocks, "kv_cache_reuse"),
        ]
    if chunked_prefill and max_num_tokens < max_input_len:
        # Words that are one token each just pass the bound; a tokenizer that needs more must not pass max_input_len.
        made.append(CanaryPrompt("chunked", _text(max_num_tokens + 1), 1, max_num_tokens + 1, "chunked_prefill"))
    return tuple(made)


def _text(words: int) -> str:
    return " ".join(_WORDS[at % len(_WORDS)] for at in range(words))


def margin_bound(differences: Sequence[float]) -> float:
    """The lead under which two right answers may part, from what the same model's logits were seen to differ by.

    ``differences``: absolute differences of single logits between two right computations (the reference in the engine's
    type and in float32). Two logits may move towards each other, so it is twice the largest.
    """
    return 2.0 * max(differences, default=0.0)


def judge(
    prompts: Sequence[CanaryPrompt],
    answers: Mapping[str, Sequence[Sequence[int]]],
    references: Mapping[str, Reference],
    bound: float,
) -> tuple[Mismatch, ...]:
    """Every wrong answer. Repeats must agree with each other; a reference counts where its lead is above ``bound``."""
    return tuple(found for prompt in prompts for found in _judge(prompt, answers, references, bound))


def _judge(
    prompt: CanaryPrompt,
    answers: Mapping[str, Sequence[Sequence[int]]],
    references: Mapping[str, Reference],
    bound: float,
) -> Iterator[Mismatch]:
    given = answers.get(prompt.id, ())
    if len(given) < prompt.times:
        yield Mismatch(prompt.id, prompt.guard, f"{len(given)} of {prompt.times} answers came")
        return
    parted = next((at for at, other in enumerate(given) if list(other) != list(given[0])), None)
    if parted is not None:
        where = first_difference(given[0], given[parted])
        what = f"answer {parted + 1} to the same prompt differs from the first at token {where}"
        yield Mismatch(prompt.id, prompt.guard, what)
    reference = references.get(prompt.id)
    if reference is not None and (at := counted_difference(given[0], reference, bound)) is not None:
        lead = f"{reference.margins[at]:.3g}" if at < len(reference.margins) else "unknown"
        what = f"token {at} is not the reference's, whose lead there is {lead} (bound {bound:.3g})"
        yield Mismatch(prompt.id, prompt.guard, what)


def counted_difference(tokens: Sequence[int], reference: Reference, bound: float) -> int | None:
    """Where an answer parts from the reference in a way that counts; None: nowhere.

    From the first difference on the two read different texts, so only that one says something.
    """
    at = first_difference(tokens, reference.tokens)
    if at is None:
        return None
    # An end that the reference does not have, or the other way round, has no lead to excuse it.
    lead = reference.margins[at] if at < len(reference.margins) else float("inf")
    return at if lead > bound else None


def first_difference(one: Sequence[int], other: Sequence[int]) -> int | None:
    """The first place where two answers differ; None when they are equal."""
    for at, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return at
    return None if len(one) == len(other) else min(len(one), len(other))
