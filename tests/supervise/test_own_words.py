from __future__ import annotations

from pathlib import Path

import pytest

from tests.supervise.conftest import HELLO, tiny_probes
from toolkit.runtimes.base import CanaryCheck, Generation, HttpProbe, LogProbe, Probes
from toolkit.supervise.logs import LogView, rank_folder
from toolkit.supervise.own_words import OwnWords, asked_paths

ASKED = frozenset({"/health", "/v1/completions"})


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "llm.log"
    path.write_text("of an earlier attempt\n")
    return path


@pytest.fixture
def words(log: Path) -> OwnWords:
    return OwnWords(LogView(log, log.stat().st_size), ASKED)


def said(words: OwnWords, log: Path, text: str) -> bool:
    """Whether this counts as something new."""
    before = words.count()
    with log.open("a") as file:
        file.write(text)
    return words.count() > before


def test_nothing_of_an_earlier_attempt_counts(words: OwnWords) -> None:
    assert words.count() == 0


@pytest.mark.parametrize(
    "line",
    [
        'INFO:     127.0.0.1:54321 - "GET /health HTTP/1.1" 503 Service Unavailable',
        '127.0.0.1 - - [31/Jan/2026 12:00:00] "POST /v1/completions HTTP/1.1" 503 -',
        '[GIN] 2026/01/31 - 12:00:00 | 503 | 31µs | 127.0.0.1 | GET      "/health"',
        '{"method": "GET", "path": "/health", "status": 503, "took_ms": 0.2}',
    ],
)
def test_what_a_server_says_of_our_own_questions_is_nothing_new(words: OwnWords, log: Path, line: str) -> None:
    assert not said(words, log, f"{line}\n")
    assert said(words, log, "loading weights\n")


def test_a_request_of_somebody_else_is_its_own_word(words: OwnWords, log: Path) -> None:
    assert said(words, log, '10.0.0.1 - "GET /weights/part-3.bin HTTP/1.1" 200\n')


def test_the_same_line_again_tells_nothing_whatever_its_time_stamp(words: OwnWords, log: Path) -> None:
    assert said(words, log, "2026-01-31 12:00:00,123 - WARNING - no block found in 60 seconds\n")
    assert not said(words, log, "2026-01-31 12:01:00,456 - WARNING - no block found in 60 seconds\n")
    assert said(words, log, "2026-01-31 12:02:00,456 - WARNING - no block found on rank 2\n")


@pytest.mark.parametrize("waited", ["{} s", "{}s", "{}.5 seconds", "{} min", "0.{} sec"])
def test_for_how_long_a_program_waits_is_nothing_new(words: OwnWords, log: Path, waited: str) -> None:
    assert said(words, log, f"still waiting for the engine ({waited.format(10)})\n")
    assert not said(words, log, f"still waiting for the engine ({waited.format(20)})\n")
    assert said(words, log, f"loaded shard 2 of 30 ({waited.format(10)})\n")
    assert said(words, log, f"loaded shard 3 of 30 ({waited.format(10)})\n")


def test_a_stack_that_every_question_brings_up_is_told_once(words: OwnWords, log: Path) -> None:
    stack = "Traceback (most recent call last):\n  at 0x{}\nRuntimeError: not loaded\n"
    assert said(words, log, stack.format("7f00a1"))
    assert not said(words, log, stack.format("7f00b2") * 3)


def test_a_progress_bar_without_an_end_of_line_counts(words: OwnWords, log: Path) -> None:
    assert said(words, log, "\rLoading shards: 25%")
    assert said(words, log, "\rLoading shards: 50%")
    assert not said(words, log, "")


def test_a_flood_counts_and_is_not_read(words: OwnWords, log: Path) -> None:
    flood = '"GET /health HTTP/1.1" 503\n' * 10_000
    assert said(words, log, flood)
    assert not said(words, log, '"GET /health HTTP/1.1" 503\n')


def test_files_of_ranks_count(words: OwnWords, log: Path) -> None:
    before = words.count()
    file = rank_folder(log) / "rank.1" / "stdout"
    file.parent.mkdir(parents=True)
    file.write_text("rank 1 loads\n")
    assert words.count() > before


def test_of_many_lines_the_last_ones_are_remembered(words: OwnWords, log: Path) -> None:
    assert said(words, log, "first\n")
    for number in range(600):
        said(words, log, f"{number} of many\n")
    assert not said(words, log, "599 of many\n")
    assert said(words, log, "first\n")


def test_every_path_that_is_asked_while_it_starts_is_known() -> None:
    assert asked_paths(tiny_probes()) == {"/health", "/hello"}
    probes = Probes(
        loaded=LogProbe("up"), stage=HttpProbe("/v1/stage"), warmup=(HttpProbe("/warm"),),
        canary=CanaryCheck(request=HELLO), generation=Generation("completions", "/v1/completions"),
    )  # fmt: skip
    assert asked_paths(probes) == {"/v1/stage", "/warm", "/hello", "/v1/completions"}
