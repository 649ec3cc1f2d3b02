from __future__ import annotations

from collections.abc import Sequence

import torch
from hypothesis import given
from hypothesis import strategies as st

from toolkit.serve.prefix import PrefixCache

SLOTS, BLOCK_TOKENS = 2, 2
Session = tuple[int, list[int], list[int]]


class SlotsOfTokens:
    """An engine whose cache holds the tokens themselves, so that what a slot really holds can be read."""

    def __init__(self, stored_blocks: int) -> None:
        self.block_tokens, self.stored_blocks = BLOCK_TOKENS, stored_blocks
        self.cache_blocks = 10
        self.piece_tokens = 3
        self.slots: list[list[int]] = [[] for _ in range(SLOTS)]
        self.store: list[list[int]] = [[] for _ in range(stored_blocks)]
        self.computed = 0
        self.wiped: list[int] = []

    def length(self, slot: int) -> int:
        return len(self.slots[slot])

    def prefill(self, slot: int, token_ids: Sequence[int], start: int = 0) -> torch.Tensor:
        assert token_ids, "at least one token is computed"
        self.slots[slot] = [*self.slots[slot][:start], *token_ids]
        self.computed += len(token_ids)
        return torch.zeros(1)

    def decode(self, slots: Sequence[int], token_ids: Sequence[int]) -> torch.Tensor:
        for slot, token in zip(slots, token_ids, strict=True):
            self.slots[slot].append(token)
        return torch.zeros(len(slots), 1)

    def release(self, slot: int) -> None:
        self.slots[slot] = []

    def wipe(self, slot: int) -> None:
        self.wiped.append(slot)

    def load_blocks(self, slot: int, blocks: Sequence[int]) -> None:
        self.slots[slot] = [token for block in blocks for token in self.store[block]]

    def save_blocks(self, slot: int, placed: Sequence[tuple[int, int]]) -> None:
        for index, block in placed:
            self.store[block] = self.slots[slot][index * BLOCK_TOKENS : (index + 1) * BLOCK_TOKENS]


def fill(cache: PrefixCache, slot: int, prompt: list[int]) -> None:
    """The slot holds the prompt, which comes in pieces."""
    start = cache.place(slot, prompt)
    for begin in range(start, len(prompt), cache.piece_tokens):
        cache.prefill(slot, prompt[begin : begin + cache.piece_tokens], begin)


def test_a_prompt_starts_behind_what_an_earlier_request_left() -> None:
    engine = SlotsOfTokens(8)
    cache = PrefixCache(engine)
    fill(cache, 0, [1, 2, 3])
    cache.decode([0], [4])
    cache.release(0)
    assert (engine.computed, cache.stored) == (3, 2)
    fill(cache, 1, [1, 2, 3, 4, 5])
    assert engine.slots[1] == [1, 2, 3, 4, 5]
    assert (engine.computed, cache.hit_tokens) == (4, 4)


def test_the_last_token_of_a_prompt_is_always_computed() -> None:
    engine = SlotsOfTokens(8)
    cache = PrefixCache(engine)
    for _ in range(2):
        fill(cache, 0, [1, 2, 3, 4])
        cache.release(0)
    assert cache.hit_tokens == 2


def test_without_stored_blocks_every_prompt_is_computed_whole() -> None:
    engine = SlotsOfTokens(0)
    cache = PrefixCache(engine)
    for _ in range(2):
        fill(cache, 0, [1, 2, 3, 4])
        cache.release(0)
    assert (engine.computed, cache.hit_tokens, cache.stored) == (8, 0, 0)


def test_blocks_in_use_are_those_of_requests_under_way_and_of_the_store() -> None:
    cache = PrefixCache(SlotsOfTokens(8))
    assert (cache.blocks, cache.blocks_in_use) == (18, 0)
    fill(cache, 0, [1, 2, 3])
    fill(cache, 1, [4])
    assert cache.blocks_in_use == 3
    cache.release(0)
    cache.release(1)
    assert cache.blocks_in_use == 1


def test_a_prompt_that_is_given_up_half_way_leaves_what_was_computed() -> None:
    engine = SlotsOfTokens(8)
    cache = PrefixCache(engine)
    cache.place(0, [1, 2, 3, 4, 5, 6, 7])
    cache.prefill(0, [1, 2, 3], 0)
    cache.release(0)
    assert cache.stored == 1
    fill(cache, 1, [1, 2, 3, 4])
    assert (engine.slots[1], cache.hit_tokens) == ([1, 2, 3, 4], 2)


def test_what_failed_is_left_to_nobody() -> None:
    engine = SlotsOfTokens(8)
    cache = PrefixCache(engine)
    fill(cache, 0, [1, 2, 3])
    cache.release(0, keep=False)
    fill(cache, 1, [1, 2, 3])
    assert (cache.stored, cache.hit_tokens, engine.wiped) == (0, 0, [0])


TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=9)


@given(st.integers(0, 5), st.lists(st.tuples(st.integers(0, SLOTS - 1), TOKENS, TOKENS), max_size=25))
def test_a_slot_holds_its_own_prompt_and_answer_whatever_was_reused(blocks: int, sessions: list[Session]) -> None:
    engine = SlotsOfTokens(blocks)
    cache = PrefixCache(engine)
    in_use: set[int] = set()
    for slot, prompt, answer in sessions:
        if slot in in_use:
            cache.release(slot)
        in_use.add(slot)
        fill(cache, slot, prompt)
        for token in answer:
            cache.decode([slot], [token])
        assert engine.slots[slot] == [*prompt, *answer]
