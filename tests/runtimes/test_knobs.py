from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.runtimes import knobs
from toolkit.runtimes.base import DeviceMemory
from toolkit.units import GIB, MIB

SIZES = st.integers(0, 300 * GIB)
TOTALS = st.integers(MIB, 300 * GIB)


@given(SIZES, TOTALS)
def test_a_fraction_never_takes_more_than_the_budget(budget: int, total: int):
    fraction = knobs.fraction_of(budget, total)
    assert 0 <= fraction <= 1
    assert fraction * total <= budget or int(fraction * total) <= budget
    assert fraction == 1 or (fraction + 2 / 10_000) * total > budget


@given(SIZES, SIZES, TOTALS, st.integers(1, 64 * MIB), st.integers(1, 128))
def test_tokens_and_fraction_never_take_more_than_the_kv_budget(
    fixed: int, kv_bytes: int, spare: int, per_token: int, block: int
):
    free = GIB + fixed + kv_bytes + spare
    memory = DeviceMemory(300 * GIB, fixed + kv_bytes, GIB, fixed, per_token, block, free, GIB + fixed + kv_bytes)
    tokens = knobs.trtllm_max_tokens(memory)
    fraction = knobs.trtllm_free_fraction(memory, capped=False)
    assert tokens is not None
    assert tokens * per_token <= kv_bytes
    assert tokens % block == 0
    assert fraction is not None
    assert int(fraction * (free - GIB - fixed)) <= kv_bytes


@given(SIZES, TOTALS)
def test_beside_a_cap_on_tokens_the_fraction_does_not_bind_first(fixed: int, kv_bytes: int):
    least = GIB + fixed + kv_bytes
    memory = DeviceMemory(900 * GIB, fixed + kv_bytes, GIB, fixed, 1, 1, least + 100 * GIB, least)
    assert knobs.trtllm_free_fraction(memory, capped=True) == 1.0
    uncapped = knobs.trtllm_free_fraction(memory, capped=False)
    assert uncapped is not None
    assert uncapped < 1.0


def test_known_values():
    assert knobs.vllm_gpu_memory_utilization(DeviceMemory(80 * GIB, 60 * GIB, GIB)) == 0.75
    assert knobs.vllm_gpu_memory_utilization(DeviceMemory(3, 1)) == 0.3333
    sglang = DeviceMemory(96 * GIB, 70 * GIB, GIB, fixed_bytes=30 * GIB, free_bytes=81 * GIB, weights_bytes=20 * GIB)
    assert knobs.sglang_mem_fraction_static(sglang) == 0.75
    assert knobs.sglang_max_total_tokens(replace(sglang, kv_bytes_per_token=GIB)) == 40
    assert knobs.vllm_kv_cache_bytes(replace(sglang, kv_bytes_per_token=1)) == 40 * GIB
    with pytest.raises(ValueError, match="no fraction"):
        knobs.fraction_of(1, 0)


def test_where_the_parts_are_unknown_there_is_no_number():
    memory = DeviceMemory(80 * GIB, 20 * GIB)
    assert knobs.trtllm_max_tokens(memory) is None
    assert knobs.trtllm_free_fraction(memory, capped=True) is None
    assert knobs.vllm_gpu_memory_utilization(DeviceMemory(80 * GIB)) is None


def test_where_only_the_weights_are_unknown_the_whole_budget_is_the_share():
    memory = DeviceMemory(80 * GIB, 39 * GIB, GIB, free_bytes=79 * GIB, free_beside_all_bytes=40 * GIB)
    assert knobs.trtllm_free_fraction(memory, capped=False) == 0.5


def test_a_device_without_room_gives_no_fraction_of_nothing():
    assert knobs.trtllm_free_fraction(DeviceMemory(8, 4, 1, 2, 1, 1, 2, 2), capped=False) == 0.0
