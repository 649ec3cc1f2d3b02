from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.canaries import CanaryPrompt
from toolkit.serve.answers import end_tokens, settled, surest, within


def prompt(name: str, tokens: int) -> CanaryPrompt:
    return CanaryPrompt(name, name, 1, tokens, "context_fmha")


def asked(budget_s: float, seconds_per_token: float, *prompts: CanaryPrompt) -> list[str]:
    """Which prompts are answered when each takes its tokens' time."""
    now_s = [0.0]

    def answer(each: CanaryPrompt) -> Any:
        now_s[0] += seconds_per_token * each.min_tokens
        return each.id

    return list(within(prompts, answer, budget_s, lambda: now_s[0]))


def test_a_prompt_that_would_take_too_long_is_left_out_before_it_is_asked():
    prompts = [prompt("short", 1), prompt("cached", 65), prompt("chunked", 8193), prompt("shared", 65)]
    assert asked(1e9, 0.1, *prompts) == ["short", "cached", "chunked", "shared"]
    assert asked(60.0, 0.1, *prompts) == ["short", "cached", "shared"]


def test_the_first_prompt_is_always_answered():
    assert asked(0.0, 1.0, prompt("short", 1), prompt("cached", 65)) == ["short"]


@pytest.mark.parametrize(
    ("named", "ends"),
    [((None, 2), {2}), ((2, 2), {2}), (([2, 7], 3), {2, 3, 7}), ((None, None), set())],
)
def test_an_answer_ends_at_any_token_that_config_or_tokenizer_name(named: tuple[Any, ...], ends: set[int]):
    assert end_tokens(*named) == ends


def leads(**known: float) -> Callable[[str], float]:
    return lambda text: known[text]


def test_the_first_prompt_that_the_model_is_sure_about_is_taken():
    assert surest(["a", "b", "c"], leads(a=0.4, b=2.0, c=5.0)) == "b"
    assert surest(["a", "b"], leads(a=0.4, b=0.6)) == "b"
    assert surest(["written"], leads()) == "written"


def test_characters_are_settled_once_no_later_token_changes_them():
    assert list(settled([" a", " a", " aé"], " aé")) == [2, 2, 3]
    assert list(settled(["Pa", "Par", "Paris"], "Paris")) == [2, 3, 5]


@given(st.lists(st.text(max_size=3), min_size=1, max_size=6))
def test_ends_never_run_backwards_and_close_the_text(pieces: list[str]):
    shown = ["".join(pieces[: at + 1]) for at in range(len(pieces))]
    ends = list(settled(shown, shown[-1]))
    assert ends == sorted(ends)
    assert ends[-1] == len(shown[-1])
    assert ends == [len(text) for text in shown]
