from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.facts.options import Option
from toolkit.runtimes.words import BadValueError, words_of

NUMBER, TEXT, FLAG = Option("--n", "int"), Option("--t", "str"), Option("--f", "flag")
PLUGIN = Option("--p", None, ("enable", "disable", "fp8"))


def refusal(option: Option, value: object, *, loose: bool = False) -> str:
    with pytest.raises(BadValueError) as caught:
        words_of(option, value, loose=loose)
    return str(caught.value)


def test_true_and_false_are_words_where_the_option_has_such():
    assert (words_of(PLUGIN, True), words_of(PLUGIN, False)) == (("enable",), ("disable",))
    assert refusal(TEXT, False) == "takes a text, not false"


def test_a_flag_that_is_on_has_no_words():
    assert words_of(FLAG, True) == ()
    assert refusal(FLAG, 1) == "takes true or false, not 1"


@pytest.mark.parametrize("value", [-0.0, -3, float("-inf")])
def test_numbers_below_zero_are_no_values_for_strict_programs(value):
    assert refusal(Option("--x", "float"), value) == f"takes no number below zero: {value}"


@pytest.mark.parametrize(("value", "loosely"), [(-1, ("-1",)), ("8k", ("8k",)), ("-2", ("-2",))])
def test_some_programs_read_more_numbers_than_others(value, loosely):
    assert words_of(NUMBER, value, loose=True) == loosely
    assert refusal(NUMBER, value)


def test_a_mapping_is_json_where_the_option_takes_one():
    assert words_of(Option("--j", "json"), {"a": 1}) == ('{"a": 1}',)
    assert refusal(TEXT, {"a": 1}) == "takes one value, not a mapping"
    assert refusal(Option("--j", "json"), 3) == "takes a mapping, not 3"


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.dates(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)
KINDS = st.sampled_from(["str", "int", "float", "json", "flag", None])


@given(KINDS, VALUES, st.booleans(), st.booleans())
def test_no_value_becomes_another_option(kind, value, many, loose):
    option = Option("--x", kind, many=many)
    try:
        found = words_of(option, value, loose=loose)
    except BadValueError:
        found = ()
    for word in found:
        assert isinstance(word, str)
        assert not word.startswith("--")
        assert loose or not word.startswith("-")
