from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.serve.sizes import padded, padded_sizes


@pytest.mark.parametrize(
    ("count", "size"),
    [(1, 4), (4, 4), (5, 8), (17, 20), (32, 32), (33, 40), (65, 80), (128, 128), (129, 160), (511, 512)],
)
def test_a_prompt_is_padded_to_one_of_few_sizes(count: int, size: int):
    assert padded(count, 1000) == size
    assert padded(count, count) == count


@given(st.integers(1, 2000), st.integers(1, 2000))
def test_padding_adds_little_and_never_passes_the_most(count: int, more: int):
    size = padded(count, count + more)
    assert count <= size <= count + more
    assert size - count < max(4, count / 4 + 1)


def test_warm_lengths_are_all_sizes_that_prompts_are_padded_to():
    assert padded_sizes(10) == [4, 8, 10]
    assert set(padded_sizes(500)) == {padded(count, 500) for count in range(1, 501)}
    assert len(padded_sizes(4096)) < 50
