from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.errors import ManyFaultsError, ToolkitError
from toolkit.facts.options import Option, OptionTable
from toolkit.runtimes import program_options

OPTIONS = (
    Option("--max-model-len", "int"),
    Option("--temperature", "float"),
    Option("--eager", "flag"),
    Option("--caching", "flag", negation="--no-caching"),
    Option("--dtype", "str", ("auto", "half")),
    Option("--mode", "str", ("a", "b"), open_choices=True),
    Option("--sizes", "int", many=True),
    Option("--config", "json"),
    Option("--anything", None),
    Option("--tensor-parallel-size", "int", aliases=("-tp", "--tp-size")),
    Option("--under_score", "str"),
)
TABLE = OptionTable("serve", "1.0", "1.0", "installed", (), {option.name: option for option in OPTIONS})
OWNED = {"--tp-size": "Write 'tp_size'."}


def words(**options: Any) -> tuple[str, ...]:
    return program_options.words("llm", options, TABLE, OWNED)


def fault(**options: Any) -> ToolkitError:
    with pytest.raises(ManyFaultsError) as caught:
        words(**options)
    (only,) = caught.value.errors
    return only


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"max_model_len": 4096}, ("--max-model-len", "4096")),
        ({"max-model-len": "32k"}, ("--max-model-len", "32k")),
        ({"--max-model-len": -1}, ("--max-model-len", "-1")),
        ({"temperature": 0.5}, ("--temperature", "0.5")),
        ({"eager": True, "caching": True}, ("--eager", "--caching")),
        ({"eager": False, "caching": False}, ("--no-caching",)),
        ({"dtype": "half"}, ("--dtype", "half")),
        ({"mode": "mine"}, ("--mode", "mine")),
        ({"sizes": [1, 2]}, ("--sizes", "1", "2")),
        ({"sizes": 1}, ("--sizes", "1")),
        ({"config": {"level": 3}}, ("--config", '{"level": 3}')),
        ({"anything": [1, "x"]}, ("--anything", '[1, "x"]')),
        ({"anything": True}, ("--anything",)),
        ({"under-score": "x"}, ("--under_score", "x")),
    ],
)
def test_an_option_becomes_the_words_that_a_parser_takes(options: dict[str, Any], expected: tuple[str, ...]):
    assert words(**options) == expected


@pytest.mark.parametrize(
    ("options", "what", "hint"),
    [
        ({"max_model_length": 1}, "serve 1.0 has no option 'max_model_length'", "Did you mean 'max-model-len'?"),
        ({"zzz": 1}, "serve 1.0 has no option 'zzz'", "See the options of serve 1.0."),
        ({"tp": 2}, "'tp' is not set here", "Write 'tp_size'."),
        ({"tensor-parallel-size": 2}, "'tensor-parallel-size' is not set here", "Write 'tp_size'."),
        ({"max_model_len": "long"}, "'max_model_len' takes a whole number, not 'long'", None),
        ({"max_model_len": True}, "'max_model_len' takes a whole number, not true", None),
        ({"max_model_len": None}, "'max_model_len' has no value", "Write one, or remove the key."),
        ({"max_model_len": 1.5}, "'max_model_len' takes a whole number, not 1.5", None),
        ({"eager": "yes"}, "'eager' takes true or false, not 'yes'", None),
        ({"dtype": "haf"}, "'dtype' takes one of auto, half, not 'haf'", "Did you mean 'half'?"),
        ({"dtype": ["half"]}, "'dtype' takes one of auto, half, not a list", None),
        ({"dtype": "--host"}, "'dtype' takes one of auto, half, not '--host'", None),
        ({"under_score": "--host"}, "'under_score' takes a text, not '--host'", None),
        ({"under_score": ["a"]}, "'under_score' takes one value, not a list", None),
        ({"under_score": ""}, "'under_score' takes a text, not ''", None),
        ({"sizes": []}, "'sizes' is an empty list", "Remove it, or write a value."),
        ({"sizes": [1, "x"]}, "'sizes' takes a whole number, not 'x'", None),
    ],
)
def test_what_the_program_would_refuse_is_refused_here(options: dict[str, Any], what: str, hint: str | None):
    found = fault(**options)
    assert (found.what, found.hint, found.where) == (what, hint, f"services.llm.options.{next(iter(options))}")


def test_every_fault_is_told_at_once():
    with pytest.raises(ManyFaultsError) as caught:
        words(zzz=1, dtype="x", eager=True)
    assert len(caught.value.errors) == 2


def test_where_nothing_tells_what_the_release_has_options_are_passed_on_but_not_the_plans():
    asked = {"new_thing": 3, "flag": True}
    assert program_options.words("llm", asked, None, OWNED) == ("--new-thing", "3", "--flag")
    with pytest.raises(ManyFaultsError):
        program_options.words("llm", {"tp_size": 3}, None, OWNED)


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.dates()
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=5)
KEYS = st.sampled_from(["max_model_len", "dtype", "anything", "config", "sizes", "eager"])


@given(KEYS, VALUES)
def test_a_value_of_any_kind_is_words_or_a_clear_refusal(key: str, value: object):
    try:
        found = words(**{key: value})
    except ManyFaultsError as refused:
        found = tuple(str(each.where) for each in refused.errors)
    assert all(isinstance(word, str) for word in found)
    assert len(found) > 0 or value is False


def test_what_is_set_is_found_by_any_spelling():
    assert program_options.value_of({"--max_model-len": 8}, "max-model-len") == 8
    assert program_options.count_of({"max_model_len": True}, "max-model-len") is None
    assert program_options.count_of({}, "max-model-len") is None
