from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.errors import ToolkitError
from toolkit.serve.kv_cache import KvSizes, bytes_per_token, divide

SLOT_TOKENS, BLOCK_TOKENS, SLOTS = 64, 16, 4


def info(*, reuse: bool = True) -> dict[str, Any]:
    kv = {"layers": 3, "heads": 2, "head_dim": 8, "length": SLOT_TOKENS, "block_tokens": BLOCK_TOKENS, "reuse": reuse}
    return {"kv_cache": kv, "limits": {"max_batch_size": SLOTS}}


TOKEN_BYTES = bytes_per_token(info(), 2)


def test_a_token_takes_keys_and_values_in_all_layers() -> None:
    assert TOKEN_BYTES == 2 * 3 * 2 * 8 * 2


def test_without_a_budget_there_are_as_many_blocks_as_the_slots_have() -> None:
    assert divide(info(), 2, None) == KvSizes(SLOTS, SLOTS * SLOT_TOKENS // BLOCK_TOKENS)
    assert divide(info(reuse=False), 2, None) == KvSizes(SLOTS, 0)


def test_slots_come_first_and_blocks_take_what_is_left() -> None:
    budget = (SLOTS * SLOT_TOKENS + 2 * BLOCK_TOKENS) * TOKEN_BYTES
    assert divide(info(), 2, budget) == KvSizes(SLOTS, 2)
    assert divide(info(), 2, 2 * SLOT_TOKENS * TOKEN_BYTES) == KvSizes(2, 0)


@pytest.mark.parametrize("budget", [-5, 0, SLOT_TOKENS * TOKEN_BYTES - 1])
def test_a_budget_below_one_sequence_is_refused_with_what_it_needs(budget: int) -> None:
    with pytest.raises(ToolkitError, match="KV cache of one sequence takes"):
        divide(info(), 2, budget)


@given(st.integers(SLOT_TOKENS * TOKEN_BYTES, 10 * SLOTS * SLOT_TOKENS * TOKEN_BYTES), st.booleans())
def test_what_is_allocated_never_passes_the_budget(budget: int, reuse: bool) -> None:
    sizes = divide(info(reuse=reuse), 2, budget)
    assert (sizes.slots * SLOT_TOKENS + sizes.blocks * BLOCK_TOKENS) * TOKEN_BYTES <= budget
