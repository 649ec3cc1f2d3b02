"""Triton's generate extension: what is asked, and what an answer says. Pure.

Source: triton-inference-server/server, docs/protocol/extension_generate.md; tensorrtllm_backend README.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Any

from toolkit.runtimes.base import Generation
from toolkit.warm.sse import Piece

# Ids that every vocabulary has and that are no special tokens in any we know.
_FIRST_ID, _IDS = 300, 1000


def path(generation: Generation, *, stream: bool) -> str:
    """The path below the model's own."""
    return f"{generation.path}/generate_stream" if stream else f"{generation.path}/generate"


def body(generation: Generation, prompt: str, max_tokens: int, *, stream: bool) -> dict[str, Any]:
    """The JSON of one greedy answer, with the inputs that the ensemble, or the inner model, has and no other."""
    if generation.wire == "triton":
        words = {"bad_words": "", "stop_words": ""}
        return {"text_input": prompt, "max_tokens": max_tokens, **words, "top_k": 1, "stream": stream}
    ids = [token_id(word) for word in prompt.split()] or [_FIRST_ID]
    lengths = {"input_lengths": len(ids), "request_output_len": max_tokens}
    return {"input_ids": ids, **lengths, "runtime_top_k": 1, "streaming": stream}


def token_id(word: str) -> int:
    """Some id for a word, always the same: what it says does not matter to how long it takes."""
    return _FIRST_ID + zlib.crc32(word.encode()) % _IDS


def read_piece(data: str) -> Piece:
    """What an answer says, whole or one event of it.

    Raises: ValueError when it is neither text nor token ids.
    """
    document = json.loads(data)
    if not isinstance(document, Mapping):
        raise ValueError("not a JSON object")
    if document.get("error"):
        return Piece(error=str(document["error"]))
    if isinstance(document.get("text_output"), str):
        return Piece(document["text_output"], finished=True)
    found = document.get("output_ids")
    ids = [found] if isinstance(found, int) else found
    if not isinstance(ids, list) or not all(isinstance(each, int) for each in ids):
        raise ValueError("neither 'text_output' nor 'output_ids' in the answer")
    return Piece(" ".join(map(str, ids)), tuple(ids), finished=True)
