from __future__ import annotations

import json
import math
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit.serve import schemas as s
from toolkit.serve.validation import describe, fault

INPUT = s.either(
    s.text(), s.listing(s.text(), 1, 3), s.listing(s.integer(0, 9), 1), s.listing(s.listing(s.integer(0, 9), 1), 1, 3)
)
BODY = s.record(
    {
        "input": INPUT,
        "kind": s.optional(s.one_of("float", "base64")),
        "share": s.optional(s.number(0, 1)),
        "count": s.integer(1),
        "flag": s.boolean(),
        "tools": s.unsupported([]),
        "docs": s.listing(s.either(s.text(), s.record({"text": s.text()}, "text"))),
    },
    "input",
)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"input": 5}, "input must be a string, or a list of 1 to 3 strings, or a list of at least 1 whole numbers"),
        ({"input": []}, "input must be a list of 1 to 3 strings, or a list"),
        ({"input": ["a", 1]}, "input[1] must be a string"),
        ({"input": [[1], "a"]}, "input[1] must be a list of at least 1 whole numbers"),
        ({"input": [1, 10]}, "input[1] must be a whole number from 0 to 9"),
        ({"input": [[1], [-1]]}, "input[1][0] must be a whole number from 0 to 9"),
        ({"input": [[]]}, "input[0] must be a list of at least 1 whole numbers"),
        ({"input": ["a"] * 4}, "input must be a list of 1 to 3 strings"),
        ({"input": ["a", "\ud800"]}, "input[1] holds half a surrogate pair at character 0"),
        ({"kind": "int8"}, "kind must be 'float' or 'base64'"),
        ({"share": True}, "share must be a number from 0 to 1"),
        ({"share": math.nan}, "share must be a number from 0 to 1"),
        ({"share": 10**400}, "share must be a number from 0 to 1"),
        ({"count": 0}, "count must be a whole number of at least 1"),
        ({"count": True}, "count must be a whole number"),
        ({"count": 1.5}, "count must be a whole number"),
        ({"flag": 1}, "flag must be true or false"),
        ({"tools": [1]}, "tools is not supported by this server"),
        ({"docs": ["a", {"text": None}]}, "docs[1].text must be a string"),
        ({"docs": ["a", {}]}, "docs[1].text is missing; it must be a string"),
        ({"docs": None}, "docs must be a list of entries"),
    ],
)
def test_the_first_fault_is_named_with_its_place(more: dict[str, Any], says: str) -> None:
    found = fault({"input": "x", **more}, BODY)
    assert found is not None
    assert found.message.startswith(says)


def test_a_missing_field_and_a_body_of_another_type_are_named() -> None:
    assert str(getattr(fault({}, BODY), "message", None)).startswith("input is missing; it must be a string, or")
    assert getattr(fault([], BODY), "message", None) == "the body must be an object"


@pytest.mark.parametrize(
    "more", [{"kind": None}, {"kind": "base64"}, {"share": 1}, {"tools": []}, {"tools": None}, {"unknown": {"a": 1}}]
)
def test_what_fits_has_no_fault_and_unknown_fields_are_nobody_s_business(more: dict[str, Any]) -> None:
    assert fault({"input": [[1, 2], [3]], **more}, BODY) is None


def test_an_empty_alternative_is_described_without_null() -> None:
    assert describe(s.optional(s.integer(1, 5))) == "a whole number from 1 to 5"


LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-3, 12)
    | st.floats(-2, 2).filter(lambda x: x % 1)
    | st.sampled_from(["", "float"])
)
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["text"]), inner)
)
BODIES = st.dictionaries(st.sampled_from([*BODY["properties"], "other"]), VALUES)
JUDGE = jsonschema_rs.validator_for(json.loads(json.dumps(BODY)))


@settings(max_examples=150, deadline=None)
@given(BODIES | VALUES)
def test_the_verdict_is_that_of_json_schema(value: Any) -> None:
    assert (fault(value, BODY) is None) == JUDGE.is_valid(value)
