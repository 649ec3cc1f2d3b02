from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit.runtimes import pbtxt
from toolkit.runtimes.pbtxt import Word

CONFIG = """
# a comment with "quotes" and { braces
name: "tensorrt_llm"
backend: 'tensorrtllm'
max_batch_size: 8
model_transaction_policy { decoupled: true }
input [
  {
    name: "input_ids"
    data_type: TYPE_INT32
    dims: [ -1 ]
  },
  { name: "input_lengths", data_type: TYPE_INT32; dims: [1] reshape: { shape: [ ] } }
]
instance_group [ { count: 1 kind : KIND_CPU } ]
parameters: {
  key: "gpu_device_ids"
  value: { string_value: "0,1" }
}
parameters < key: "fraction" value < string_value: "0." "9" > >
version_policy: { latest { num_versions: 1 } }
"""


def test_a_configuration_as_people_write_them_is_read() -> None:
    found = pbtxt.read(CONFIG)
    assert found["name"] == ["tensorrt_llm"]
    assert found["backend"] == ["tensorrtllm"]
    assert found["max_batch_size"] == [8]
    assert found["model_transaction_policy"] == [{"decoupled": ["true"]}]
    assert [each["name"] for each in found["input"]] == [["input_ids"], ["input_lengths"]]
    assert found["input"][0]["dims"] == [-1]
    assert found["input"][1]["reshape"] == [{"shape": []}]
    assert found["instance_group"] == [{"count": [1], "kind": ["KIND_CPU"]}]
    assert [each["value"][0]["string_value"] for each in found["parameters"]] == [["0,1"], ["0.9"]]


def test_words_and_texts_are_told_apart() -> None:
    found = pbtxt.read('a: true b: "true"')
    assert isinstance(found["a"][0], Word)
    assert not isinstance(found["b"][0], Word)


@pytest.mark.parametrize(
    ("text", "value"),
    [("0x1F", 31), ("017", 15), ("-3", -3), ("1.5", 1.5), ("2f", 2.0), ("1e3", 1000.0), (r'"\x41\102\n\""', 'AB\n"')],
)
def test_numbers_and_escapes_have_their_meaning(text: str, value: Any) -> None:
    assert pbtxt.read(f"a: {text}")["a"] == [value]


def test_escaped_bytes_are_utf_8() -> None:
    assert pbtxt.read(r'a: "\303\251"')["a"] == ["é"]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('name "x"', 1),
        ("\n\nname: }", 3),
        ("a {", 1),
        ("a: [1, 2", 1),
        ("a: ${max_batch_size}", 1),
        ('\na: "no end\n"', 2),
        ("a: 1 }", 1),
        ('"a": 1', 1),
    ],
)
def test_a_fault_names_its_line(text: str, line: int) -> None:
    with pytest.raises(ValueError, match=rf"^line {line}:"):
        pbtxt.read(text)


NAMES = st.from_regex(r"[a-z][a-z_]{0,8}", fullmatch=True)
SCALARS = st.one_of(
    st.integers(-(2**63), 2**63),
    st.text(st.characters(codec="utf-8")),
    st.from_regex(r"[A-Z][A-Z_]{0,8}", fullmatch=True).map(Word),
)
MESSAGES = st.recursive(
    st.dictionaries(NAMES, st.lists(SCALARS, min_size=1, max_size=3), max_size=4),
    lambda inner: st.dictionaries(NAMES, st.lists(inner, min_size=1, max_size=2), max_size=3),
    max_leaves=8,
)


@settings(max_examples=40, deadline=None)
@given(MESSAGES)
def test_what_is_written_is_read_again(message: dict[str, Any]) -> None:
    assert pbtxt.read(pbtxt.write(message)) == message


@given(st.text(alphabet='ab:{}[]<>"\\# \n1-.,', max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        found = pbtxt.read(text)
    except ValueError:
        return
    assert isinstance(found, dict)
