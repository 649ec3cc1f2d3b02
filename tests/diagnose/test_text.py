from __future__ import annotations

import pytest

from toolkit.diagnose import text as texts
from toolkit.diagnose.text import Level

SAMPLES = [
    ("2024-08-05T05:50:00.038184091Z stderr F E0805 05:50:02.392475 1 x.cc:1460] boom", Level.ERROR, None, "boom"),
    ("[1,2]<stdout>:[TensorRT-LLM][WARNING] boom", Level.WARNING, "2", "boom"),
    ("(EngineCore_DP0 pid=337) ERROR 10-21 04:00:30 [core.py:1022] boom", Level.ERROR, None, "boom"),
    ("[09/15/2026-23:40:49] [TRT-LLM] [RANK 7] [E] boom", Level.ERROR, "7", "boom"),
    ("[2025-05-12 08:30:19 TP3] boom", Level.ERROR, "TP3", "boom"),
    ("Feb 14 15:51:00 node01 serve[733]: 2025-02-14 15:51:00,100 INFO boom", Level.INFO, None, "boom"),
    ("vllm-0  | WARNING 01-01 00:00:00 [a.py:1] boom", Level.WARNING, None, "boom"),
    ("3: boom", Level.ERROR, "3", "boom"),
    ("node01:7:7 [0] NCCL INFO boom", Level.INFO, None, "node01:7:7 [0] NCCL INFO boom"),
    ("/x/y.py:12: UserWarning: boom", Level.WARNING, None, "/x/y.py:12: UserWarning: boom"),
    ('{"log":"INFO 01-01 00:00:00 [a.py:1] boom\\n","stream":"stderr","time":"x"}', Level.INFO, None, "boom"),
    ("[rank0]:[W211 08:00:01.5 ProcessGroupNCCL.cpp:1476] boom", Level.WARNING, "0", "boom"),
    ("E1123 08:00:01.110000 90 torch/distributed/api.py:874] boom", Level.ERROR, None, "boom"),
    ('{"severity":"INFO"} boom', Level.INFO, None, '{"severity":"INFO"} boom'),
    ("ERROR 01-01 00:00:00 [a.py:1] boom, retrying 1 of 2", Level.WARNING, None, "boom, retrying 1 of 2"),
    ("boom", Level.ERROR, None, "boom"),
]


@pytest.mark.parametrize(("text", "level", "rank", "message"), SAMPLES)
def test_level_rank_and_message_are_told(text: str, level: Level, rank: str | None, message: str) -> None:
    line = texts.make(1, text)
    at = len(line.message)
    assert (line.level(at), line.rank(at), line.message) == (level, rank, message)


def test_what_a_user_wrote_is_blanked() -> None:
    line = texts.make(1, "INFO request prompt: 'it's a RuntimeError: CUDA', params: x")
    assert "RuntimeError" not in line.text
    assert line.text.endswith("', params: x")


def test_a_prompt_may_go_on_in_the_next_line() -> None:
    assert texts.open_quote('prompt: "first line') == '"'
    assert texts.open_quote('prompt: "whole"') is None
    assert texts.open_quote("nothing quoted") is None


def test_the_sentence_is_what_stands_between_carriage_returns() -> None:
    line = texts.make(1, "10%|\r20%|\rERROR: boom\r30%")
    assert line.sentence(line.message.index("boom")) == "boom"


def test_long_texts_lose_their_middle() -> None:
    assert len(texts.clip("x" * 5000)) < 1010
