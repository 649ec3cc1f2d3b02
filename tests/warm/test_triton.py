from __future__ import annotations

import json

import pytest

from toolkit.runtimes.base import Generation
from toolkit.warm import triton

TEXT = Generation("completions", "/v2/models/ensemble", wire="triton")
IDS = Generation("completions", "/v2/models/tensorrt_llm", wire="triton_ids")


def test_an_ensemble_is_asked_greedily_with_its_own_inputs_and_no_other() -> None:
    body = triton.body(TEXT, "The capital", 8, stream=True)
    assert body == {
        "text_input": "The capital",
        "max_tokens": 8,
        "bad_words": "",
        "stop_words": "",
        "top_k": 1,
        "stream": True,
    }
    assert triton.path(TEXT, stream=True) == "/v2/models/ensemble/generate_stream"
    assert triton.path(TEXT, stream=False) == "/v2/models/ensemble/generate"


def test_the_inner_model_is_asked_with_ids_of_which_the_same_words_give_the_same() -> None:
    body = triton.body(IDS, "rain falls rain", 4, stream=False)
    first, second, third = body["input_ids"]
    assert first == third != second
    assert body["input_lengths"] == 3
    assert body["request_output_len"] == 4
    assert triton.body(IDS, "", 1, stream=False)["input_ids"], "an empty prompt would be refused"


@pytest.mark.parametrize(
    ("document", "text", "ids"),
    [
        ({"text_output": " Paris", "model_name": "ensemble"}, " Paris", None),
        ({"output_ids": [7, 8], "sequence_length": 2}, "7 8", (7, 8)),
        ({"output_ids": 7}, "7", (7,)),
    ],
)
def test_an_answer_is_text_or_ids(document: object, text: str, ids: object) -> None:
    piece = triton.read_piece(json.dumps(document))
    assert (piece.text, piece.token_ids, piece.finished) == (text, ids, True)


def test_an_error_inside_a_stream_is_an_error() -> None:
    assert triton.read_piece('{"error": "in ensemble: out of memory"}').error == "in ensemble: out of memory"


@pytest.mark.parametrize("data", ["[]", "{}", '{"output_ids": "7"}', '{"output_ids": [[7]]}', "no JSON"])
def test_what_is_no_answer_is_told(data: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        triton.read_piece(data)
