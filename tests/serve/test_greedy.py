from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from toolkit.errors import ToolkitError
from toolkit.serve.greedy import record


def counting(gap: float, tie_after: int) -> object:
    """A model whose next token is the number of tokens so far, ahead of token 0 by ``gap``, tied from a length on."""

    def answer(tokens: Sequence[int]) -> Tensor:
        logits = torch.full((64,), -5.0)
        logits[0] = 0.0
        logits[len(tokens) % 64] = gap if len(tokens) < tie_after else 0.0001
        return logits

    return answer


def test_tokens_are_the_models_own_greedy_ones() -> None:
    found = record(counting(3.0, 99), "model", torch.float32, [7, 7], max_tokens=4, longest=50)  # type: ignore[arg-type]
    assert found.tokens == (2, 3, 4, 5)
    assert found.tie_at is None


def test_the_canary_ends_before_a_step_that_could_go_either_way() -> None:
    found = record(counting(3.0, 4), "model", torch.bfloat16, [7, 7], max_tokens=4, longest=50)  # type: ignore[arg-type]
    assert found.tokens == (2, 3)
    assert found.tie_at == 2


def test_a_canary_whose_first_token_is_undecided_proves_nothing() -> None:
    with pytest.raises(ToolkitError, match="undecided"):
        record(counting(3.0, 0), "model", torch.bfloat16, [7], max_tokens=4, longest=50)  # type: ignore[arg-type]


def test_the_longer_prompt_stays_within_the_limit() -> None:
    found = record(counting(3.0, 99), "model", torch.float32, [7, 8, 9], max_tokens=1, longest=10)  # type: ignore[arg-type]
    assert found.long_prompt == (7, 8, 9, 7, 8, 9, 7, 8, 9, 7)
