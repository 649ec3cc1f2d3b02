"""The canary set of a generative service: prompts that reach what a guard guards, and when answers really differ. Pure.

One prompt proves little: it never reads a cached block, never starts behind another chunk. Standard library only: the
child that records right answers imports this beside torch.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import inf
from typing import Any

# Asked in this order where nobody wrote a prompt: the first that the model is sure about.
PROMPTS = ("The capital of France is", "One, two, three, four,", "Monday, Tuesday, Wednesday,")
# Each is one token or more in any tokenizer, so that so many words are at least so many tokens.
_WORDS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
# What long prompts ask for stands at their very beginning, in the blocks and chunks that must be read for the answer.
_FACTS = "The first word is silver river stone lamp. The second word is golden mountain cloud tree. "
_SUFFIX = ". The first word is"
_OTHER_SUFFIX = ". The second word is"
# For words such as these, tokenizers of today take at most so many tokens each.
_TOKENS_PER_WORD = 2
MAX_TOKENS = 8
ORDINALS = ("1st", "2nd", "3rd")
GUARDS: Mapping[str, str] = {
    "context_fmha": "attention of the context phase is wrong without any cached block or chunk: look at how the model "
    "was converted, at its data type, and at the attention backend ('fmha' in the recipe)",
    "kv_cache_reuse": "blocks of an earlier prompt were read: switch off reuse ('kv_cache: {reuse: false}' in the "
    "recipe, block reuse or prefix caching in the server's options)",
    "chunked_prefill": "the prompt was computed in chunks: switch off chunked prefill (chunked context) in the "
    "server's options, or raise its max_num_tokens",
}


@dataclass(frozen=True)
class Reach:
    """What long prompts must pass in one server: tokens of a cache block and of a step, and what a prompt may have."""

    tokens_per_block: int = 32
    max_num_tokens: int = 8192
    max_input_len: int = 1024
    chunked_prefill: bool = False


@dataclass(frozen=True)
class CanaryPrompt:
    """One prompt, sent ``times`` in a row. ``guard``: what to look at when its answer is wrong.

    ``min_tokens``: what it has to reach what it is for. ``max_tokens``: how long its answer is. An answer to the first
    of several sendings, which reads no cached block yet, is ``context_fmha``'s.
    """

    id: str
    text: str
    times: int
    min_tokens: int
    guard: str
    max_tokens: int = MAX_TOKENS

    def of(self, max_tokens: int) -> CanaryPrompt:
        """The same prompt with an answer of so many tokens."""
        return replace(self, max_tokens=max_tokens)


@dataclass(frozen=True)
class Reference:
    """The right answer: greedy tokens, and by how much the best logit led the second at each.

    ``text``: what the tokens say, without a character that they leave unfinished. ``ends``: for each token the
    characters of ``text`` that are settled once it is there; empty when they are not known.
    """

    tokens: tuple[int, ...]
    margins: tuple[float, ...]
    text: str = ""
    ends: tuple[int, ...] = ()


@dataclass(frozen=True)
class Answer:
    """What a server answered; ``tokens`` None: it tells its text only."""

    text: str = ""
    tokens: tuple[int, ...] | None = None


@dataclass(frozen=True)
class CanarySet:
    """The prompts of one service with their right answers, by prompt id; ``bound``: the lead that counts as one.

    ``source``: where the answers come from (plain transformers, or a fused engine of the same checkpoint). A prompt
    without a reference proves only that repeats agree.
    """

    prompts: tuple[CanaryPrompt, ...]
    references: Mapping[str, Reference] = field(default_factory=dict)
    bound: float = 0.0
    source: str = ""


@dataclass(frozen=True)
class Mismatch:
    """A wrong answer: it vetoes READY, and names the guard to look at."""

    id: str
    guard: str
    what: str
    expected: str = ""
    got: str = ""


def canary_set(
    prompt: str,
    *,
    tokens_per_block: int,
    max_num_tokens: int,
    max_input_len: int,
    chunked_prefill: bool,
    count: Callable[[str], int] | None = None,
) -> tuple[CanaryPrompt, ...]:
    """The prompts of a server: a short one; one over two blocks, twice; its prefix with another suffix; one in chunks.

    ``count``: tokens of a text by the model's own tokenizer; without it words are counted, generously. What does not
    fit ``max_input_len`` is left out, and so is the last where chunks are not allowed.
    """
    blocks = 2 * tokens_per_block + 1
    prefix = _text(blocks, count)
    made = [
        CanaryPrompt("cached", prefix + _SUFFIX, 2, blocks, "kv_cache_reuse"),
        CanaryPrompt("shared_prefix", prefix + _OTHER_SUFFIX, 1, blocks, "kv_cache_reuse"),
    ]
    if max(_size(each.text, count) for each in made) > max_input_len:
        made = []
    if chunked_prefill and max_num_tokens < max_input_len:
        chunked = _text(max_num_tokens + 1, count) + _SUFFIX
        if count is None or count(chunked) <= max_input_len:
            made.append(CanaryPrompt("chunked", chunked, 1, max_num_tokens + 1, "chunked_prefill"))
    return (CanaryPrompt("short", prompt, 1, 1, "context_fmha"), *made)


def _text(tokens: int, count: Callable[[str], int] | None) -> str:
    """The facts and as few words as make at least so many tokens."""
    words = tokens if count is None else bisect_left(range(tokens), tokens, key=lambda n: count(_facts_and(n)))
    return _facts_and(words)


def _facts_and(words: int) -> str:
    return _FACTS + " ".join(_WORDS[at % len(_WORDS)] for at in range(words))


def _size(text: str, count: Callable[[str], int] | None) -> int:
    return _TOKENS_PER_WORD * len(text.split()) if count is None else count(text)


def margin_bound(differences: Sequence[float]) -> float:
    """The lead under which a right answer may part from the reference.

    ``differences``: by how much a lead was seen to change between two right computations (the reference in the
    server's data type and in float32). Another right computation rounds otherwise, so it is half as much again.
    """
    return 1.5 * max(differences, default=0.0)


def decided(reference: Reference, bound: float) -> int:
    """How many tokens of a reference come before the first whose lead is not above ``bound``."""
    leads = enumerate(reference.margins[: len(reference.tokens)])
    return next((at for at, lead in leads if lead <= bound), len(reference.tokens))


def cut(reference: Reference, tokens: int) -> Reference:
    """The first ``tokens`` of a reference."""
    ends = reference.ends[:tokens]
    text = reference.text[: ends[-1] if ends else 0] if reference.ends else reference.text
    return Reference(reference.tokens[:tokens], reference.margins[:tokens], text, ends)


def settle(found: CanarySet) -> CanarySet:
    """The set as it is asked: no longer than its references, and what is asked repeatedly only up to its first tie.

    Servers end answers by rules of their own, so no end is compared. Repeats must agree whatever the leads are, and
    a tie may fall the other way once cached blocks are read. Without a reference a prompt proves something only
    when it is repeated.
    """
    references = {
        prompt.id: cut(known, max(decided(known, found.bound), 1)) if prompt.times > 1 else known
        for prompt in found.prompts
        if (known := found.references.get(prompt.id)) is not None and known.tokens
    }
    prompts = tuple(
        prompt.of(len(references[prompt.id].tokens))
        if prompt.id in references
        else replace(prompt, times=max(2, prompt.times))
        for prompt in found.prompts
    )
    return replace(found, prompts=prompts, references=references)


def judge(
    prompts: Sequence[CanaryPrompt],
    answers: Mapping[str, Sequence[Answer]],
    references: Mapping[str, Reference],
    bound: float,
) -> tuple[Mismatch, ...]:
    """Every wrong answer. Repeats must agree with each other; a reference counts where its lead is above ``bound``."""
    return tuple(found for prompt in prompts for found in _judge(prompt, answers, references, bound))


def _judge(
    prompt: CanaryPrompt, answers: Mapping[str, Sequence[Answer]], references: Mapping[str, Reference], bound: float
) -> Iterator[Mismatch]:
    given = answers.get(prompt.id, ())
    if len(given) < prompt.times:
        yield Mismatch(prompt.id, prompt.guard, f"'{prompt.id}': {len(given)} of {prompt.times} answers came")
        return
    reference = references.get(prompt.id)
    if reference is not None and (at := counted_difference(given[0], reference, bound)) is not None:
        guard = prompt.guard if prompt.times == 1 else "context_fmha"
        yield _mismatch(prompt, guard, 0, _shown_lead(reference, at, bound), (reference.text, given[0].text))
    parted = next((at for at, other in enumerate(given) if _parted(given[0], other)), None)
    if parted is not None:
        why = "it differs from the first answer to the same prompt"
        yield _mismatch(prompt, prompt.guard, parted, why, (given[0].text, given[parted].text))


def _mismatch(prompt: CanaryPrompt, guard: str, at: int, why: str, texts: tuple[str, str]) -> Mismatch:
    when = f" ({ORDINALS[at] if at < len(ORDINALS) else f'{at + 1}th'} time)" if prompt.times > 1 else ""
    return Mismatch(prompt.id, guard, f"wrong answer to '{prompt.id}'{when}: {why}", *texts)


def _shown_lead(reference: Reference, at: int, bound: float) -> str:
    lead = f"{reference.margins[at]:.3g}" if at < len(reference.margins) else "unknown"
    return f"token {at + 1} is not the reference's, whose lead there is {lead} (bound {bound:.3g})"


def _parted(one: Answer, other: Answer) -> bool:
    if one.tokens is not None and other.tokens is not None:
        return one.tokens != other.tokens
    return one.text != other.text


def counted_difference(answer: Answer, reference: Reference, bound: float) -> int | None:
    """The token at which an answer parts from the reference in a way that counts; None: nowhere.

    From the first difference on the two read different texts, so only that one says something. An answer that goes on
    after the reference's last token is no other answer.
    """
    if answer.tokens is not None and reference.tokens:
        at = first_difference(answer.tokens[: len(reference.tokens)], reference.tokens)
        suspects = range(0) if at is None else range(at, at + 1)
    else:
        suspects = text_difference(answer.text, reference)
    leads = [reference.margins[at] if at < len(reference.margins) else inf for at in suspects]
    return suspects[-1] if leads and min(leads) > bound else None


def text_difference(text: str, reference: Reference) -> range:
    """The tokens of the reference at which an answer of this text may have parted from it; empty: it did not.

    The last of them is the token where the texts differ. Another token may begin with the same characters, so those
    before it in the same word are suspects too. Space in front and at the end is not compared: servers drop it.
    """
    front = len(reference.text) - len(reference.text.lstrip())
    given, wanted = reference.text[:front] + text.lstrip(), reference.text
    at = first_difference(given, wanted)
    if at is None or at >= len(wanted.rstrip()):
        return range(0)
    last = bisect_right(reference.ends, at)
    first = last
    while first > 0 and not _word_ends(reference, first - 1):
        first -= 1
    return range(first, last + 1)


def _word_ends(reference: Reference, token: int) -> bool:
    """Whether the text after this token begins a word of its own; not when the token shows nothing of itself yet."""
    end, begin = reference.ends[token], reference.ends[token - 1] if token else 0
    if end == begin or end >= len(reference.text):
        return False
    before, after = reference.text[end - 1], reference.text[end]
    return (after.isspace() and not before.isspace()) or before.isalnum() != after.isalnum()


def first_difference(one: Sequence[Any], other: Sequence[Any]) -> int | None:
    """The first place where two answers differ; None when they are equal."""
    for at, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return at
    return None if len(one) == len(other) else min(len(one), len(other))


def to_document(found: CanarySet) -> dict[str, Any]:
    """The set as JSON."""
    return {
        "prompts": [asdict(prompt) for prompt in found.prompts],
        "references": {name: asdict(reference) for name, reference in found.references.items()},
        "bound": found.bound,
        "source": found.source,
    }


def of_document(document: Mapping[str, Any]) -> CanarySet:
    """The set in such JSON.

    Raises: ValueError when it holds none.
    """
    try:
        prompts = tuple(CanaryPrompt(**row) for row in document["prompts"])
        references = {
            str(name): Reference(tuple(row["tokens"]), tuple(row["margins"]), row["text"], tuple(row["ends"]))
            for name, row in document["references"].items()
        }
        return CanarySet(prompts, references, float(document["bound"]), str(document["source"]))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"no canary set: {error}") from error
