"""Prompts that differ in words and length, the same on every run."""

from __future__ import annotations

import hashlib

# Common short words: about one token each in any tokenizer, so a length in words is nearly one in tokens.
WORDS = (
    "the", "river", "runs", "past", "a", "small", "old", "town", "where", "people",
    "walk", "in", "spring", "and", "talk", "about", "work", "food", "music", "rain",
    "games", "children", "read", "long", "books", "by", "window", "while", "birds", "fly",
    "over", "green", "fields", "near", "an", "open", "road", "to", "some", "far",
    "blue", "hill",
)  # fmt: skip
PROBE_LENGTHS = (6, 14, 30)
UNSEEN_LENGTH = 22
# Found by trying all orders: seven probes are enough for a steady server, and neither slow first requests nor any
# pattern of slow and fast ones with a period of two to four looks steady because a length only meets itself.
FIRST_LENGTHS = (0, 1, 2, 0, 2, 0, 1, 0, 2, 0, 0, 0, 0, 0)


def probe_lengths(max_input_tokens: int | None) -> tuple[int, ...]:
    """The lengths (words) that first-token probes use, ascending, all within half of ``max_input_tokens``."""
    return tuple(sorted({min(length, _cap(max_input_tokens)) for length in PROBE_LENGTHS}))


def unseen_length(max_input_tokens: int | None) -> int:
    """A length (words) that no probe used; with fewer than eight input tokens there may be none left."""
    used = probe_lengths(max_input_tokens)
    cap = _cap(max_input_tokens)
    free = [length for length in range(min(UNSEEN_LENGTH, cap), 0, -1) if length not in used]
    return free[0] if free else cap


def length_of_probe(index: int, lengths: tuple[int, ...]) -> int:
    """The length of probe ``index``, in an order that slow requests can't fall in step with."""
    order = FIRST_LENGTHS[index] if index < len(FIRST_LENGTHS) else _number("order", index)
    return lengths[order % len(lengths)]


def prompt(length: int, seed: int) -> str:
    """``length`` words; another seed gives other words from the first one on."""
    return " ".join(WORDS[_number(seed, place) % len(WORDS)] for place in range(length))


def _cap(max_input_tokens: int | None) -> int:
    return max(1, max_input_tokens // 2) if max_input_tokens is not None else max(PROBE_LENGTHS)


def _number(*parts: object) -> int:
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:8], "big")
