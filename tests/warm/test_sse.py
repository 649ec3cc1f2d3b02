from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.warm.sse import Piece, read_embedding, read_piece, split_events

KEYS = st.sampled_from(["choices", "text", "delta", "message", "content", "error", "finish_reason", "token_ids"])
STREAM = b': keep-alive\n\ndata: {"a": 1}\r\n\r\nevent: x\ndata: one\ndata: two\n\ndata: [DONE]\n\n'


def test_comments_are_dropped_and_data_lines_joined():
    assert split_events(STREAM) == (['{"a": 1}', "one\ntwo", "[DONE]"], b"")


@given(st.lists(st.integers(min_value=0, max_value=len(STREAM)), max_size=6))
def test_events_do_not_depend_on_how_the_stream_is_cut(cuts: list[int]):
    edges = [0, *sorted(cuts), len(STREAM)]
    found: list[str] = []
    rest = b""
    for start, end in pairwise(edges):
        events, rest = split_events(rest + STREAM[start:end])
        found += events
    assert (found, rest) == split_events(STREAM)


@pytest.mark.parametrize(
    ("choice", "text"),
    [
        ({"text": " Paris"}, " Paris"),
        ({"delta": {"role": "assistant", "content": ""}}, ""),
        ({"delta": {"content": " Paris"}}, " Paris"),
        ({"delta": {"content": None}}, ""),
        ({"message": {"content": "Paris"}}, "Paris"),
        ({"text": ""}, ""),
    ],
)
def test_text_is_found_in_completions_and_chat_completions(choice: dict[str, object], text: str):
    assert read_piece(json.dumps({"choices": [choice]})).text == text


def test_usage_only_events_hold_no_text():
    assert read_piece('{"choices": [], "usage": {"total_tokens": 3}}') == Piece()


def test_an_error_inside_the_stream_is_an_error():
    assert read_piece('{"error": {"message": "out of blocks"}}').error == "out of blocks"


@pytest.mark.parametrize("body", ["", "{", "[]", "3", "{}", '{"choices": 3}'])
def test_anything_else_is_refused(body: str):
    with pytest.raises(ValueError):
        read_piece(body)


@pytest.mark.parametrize("body", ["{}", '{"data": []}', '{"data": [{"embedding": "AAAA"}]}', '{"data": [{}]}', "[1]"])
def test_an_answer_without_a_vector_is_refused(body: str):
    with pytest.raises(ValueError):
        read_embedding(body)


@given(st.recursive(st.none() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(KEYS, x)))
def test_no_json_breaks_the_reader(document: object):
    try:
        piece = read_piece(json.dumps(document))
    except ValueError:
        return
    assert isinstance(document, dict) or piece.finished
