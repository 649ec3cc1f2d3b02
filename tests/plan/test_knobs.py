from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.plan.machines import CONTEXT, deployment, gpu, host, shared
from toolkit.plan import knobs, make
from toolkit.units import GIB, MIB

SIZES = st.integers(0, 300 * GIB)
TOTALS = st.integers(MIB, 300 * GIB)


@given(SIZES, TOTALS)
def test_a_fraction_never_takes_more_than_the_budget(budget: int, total: int):
    fraction = knobs.fraction_of(budget, total)
    assert 0 <= fraction <= 1
    assert fraction * total <= budget or int(fraction * total) <= budget
    assert fraction == 1 or (fraction + 2 / 10_000) * total > budget


@given(SIZES, TOTALS, st.integers(1, 64 * MIB), st.integers(1, 128))
def test_tokens_never_take_more_than_the_kv_budget(kv_bytes: int, free: int, per_token: int, block: int):
    tokens = knobs.trtllm_max_tokens(kv_bytes, per_token, block)
    assert tokens * per_token <= kv_bytes
    assert tokens % block == 0
    assert int(knobs.trtllm_free_gpu_memory_fraction(kv_bytes, free) * free) <= kv_bytes


@given(SIZES, SIZES, TOTALS)
def test_every_programs_share_stays_within_its_budget(weights: int, kv_bytes: int, total: int):
    static = weights + kv_bytes
    assert int(knobs.sglang_mem_fraction_static(static, total) * total) <= static
    assert int(knobs.vllm_gpu_memory_utilization(static, total) * total) <= static
    assert int(knobs.torch_memory_fraction(static, total) * total) <= static
    assert knobs.kv_cache_bytes(static, weights) == kv_bytes


def test_known_values():
    assert knobs.vllm_gpu_memory_utilization(60 * GIB, 80 * GIB) == 0.75
    assert knobs.vllm_gpu_memory_utilization(1, 3) == 0.3333
    assert knobs.trtllm_free_gpu_memory_fraction(GIB, 0) == 0.0
    with pytest.raises(ValueError, match="no fraction"):
        knobs.fraction_of(1, 0)


def test_what_is_free_when_the_kv_cache_is_made_leaves_out_whoever_starts_later():
    plan = make(deployment(a=shared("20GiB"), b=shared("10GiB")), host(gpu(0, used_bytes=GIB)))
    line = plan.ledger[0]
    assert knobs.free_when_kv_is_made(line, "a", 5 * GIB, frozenset({"b"})) == (80 - 1 - 5) * GIB - CONTEXT
    assert knobs.free_when_kv_is_made(line, "b", 5 * GIB, frozenset()) == (80 - 1 - 20 - 5) * GIB - 2 * CONTEXT
