from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.serve.blocks import BlockAllocator, PrefixBlocks, chain

PROMPTS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=14), max_size=30)


@given(st.integers(0, 6), st.lists(st.integers(-1, 6), max_size=60))
def test_no_block_is_handed_out_twice_and_none_is_lost(count: int, moves: list[int]) -> None:
    allocator, held = BlockAllocator(count), list[int]()
    for move in moves:
        if move < 0 or not held:
            block = allocator.take()
            assert (block is None) == (len(held) == count)
            if block is not None:
                assert block not in held
                held.append(block)
        else:
            allocator.give_back(held.pop(move % len(held)))
        assert allocator.taken == len(held)
    for block in held:
        allocator.give_back(block)
    assert {allocator.take() for _ in range(count)} == set(range(count))
    assert allocator.take() is None


@pytest.mark.parametrize("block", [-1, 0, 1, 2])
def test_a_block_that_is_not_taken_cannot_be_given_back(block: int) -> None:
    allocator = BlockAllocator(2)
    with pytest.raises(ValueError, match="not taken"):
        allocator.give_back(block)


def test_a_link_covers_all_tokens_before_it() -> None:
    assert chain([1, 2, 3, 4], 2)[:1] == chain([1, 2, 9], 2)
    assert chain([1, 2, 3, 4], 2)[1] != chain([9, 2, 3, 4], 2)[1]
    assert len(chain([1, 2, 3], 2)) == 1
    assert chain([1], 2) == []


def test_what_was_stored_is_found_as_far_as_it_is_the_same() -> None:
    prefixes = PrefixBlocks(BlockAllocator(8))
    stored = prefixes.store(chain([1, 2, 3, 4, 5, 6], 2))
    assert [index for index, _ in stored] == [0, 1, 2]
    assert prefixes.match(chain([1, 2, 3, 4, 7, 8], 2)) == [block for _, block in stored[:2]]
    assert prefixes.match(chain([7, 2, 3, 4], 2)) == []


def test_what_is_known_is_not_stored_again() -> None:
    prefixes = PrefixBlocks(BlockAllocator(8))
    prefixes.store(chain([1, 2, 3, 4], 2))
    assert [index for index, _ in prefixes.store(chain([1, 2, 3, 4, 5, 6], 2))] == [2]


def test_the_end_of_the_chain_used_longest_ago_gives_way() -> None:
    prefixes = PrefixBlocks(BlockAllocator(4))
    prefixes.store(chain([1, 1, 2, 2], 2))
    prefixes.store(chain([3, 3, 4, 4], 2))
    prefixes.match(chain([1, 1, 2, 2], 2))
    prefixes.store(chain([5, 5], 2))
    assert len(prefixes.match(chain([1, 1, 2, 2], 2))) == 2
    assert len(prefixes.match(chain([3, 3, 4, 4], 2))) == 1


def test_a_chain_longer_than_the_store_keeps_its_beginning() -> None:
    prefixes = PrefixBlocks(BlockAllocator(2))
    assert [index for index, _ in prefixes.store(chain([1, 2, 3], 1))] == [0, 1]
    assert len(prefixes.match(chain([1, 2, 3], 1))) == 2


@given(st.integers(0, 5), PROMPTS)
def test_a_match_names_blocks_that_hold_exactly_that_prefix(count: int, prompts: list[list[int]]) -> None:
    allocator = BlockAllocator(count)
    prefixes, content = PrefixBlocks(allocator), dict[int, tuple[int, ...]]()
    for prompt in prompts:
        links = chain(prompt, 2)
        for index, block in enumerate(prefixes.match(links)):
            assert content[block] == tuple(prompt[: 2 * index + 2])
        for index, block in prefixes.store(links):
            content[block] = tuple(prompt[: 2 * index + 2])
        assert allocator.taken <= count
