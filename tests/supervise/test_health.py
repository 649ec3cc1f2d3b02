from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.supervise.health import IN_A_ROW, RIGHT, Answer, Evidence, Health, advanced, done_work, judge
from toolkit.supervise.window import Sample

WRONG, SILENT, BUSY = Answer("wrong", "GET /: 503"), Answer("silent", "no answer"), Answer("busy", "429")


def verdicts(*told: tuple[Answer, bool]) -> list[str | None]:
    """The kind of failure after each answer."""
    health, found = Health(), []
    for answer, moved in told:
        health, failure = judge(health, answer, moved, "deep probes")
        found.append(failure.kind if failure else None)
    return found


def test_error_answers_in_a_row_are_broken_even_while_something_advances() -> None:
    assert verdicts(*[(WRONG, True)] * 3) == [None, None, "not_live"]


def test_one_right_answer_forgets_what_was_wrong() -> None:
    assert verdicts((WRONG, True), (WRONG, True), (RIGHT, True), (WRONG, True), (WRONG, True)) == [None] * 5


@pytest.mark.parametrize("answer", [SILENT, BUSY])
def test_busy_is_not_broken_as_long_as_something_advances(answer: Answer) -> None:
    assert verdicts(*[(answer, True)] * 50) == [None] * 50


@pytest.mark.parametrize("answer", [SILENT, BUSY])
def test_no_answer_and_no_progress_over_three_periods_is_broken(answer: Answer) -> None:
    assert verdicts(*[(answer, False)] * 3) == [None, None, "stalled"]
    assert verdicts((answer, False), (answer, False), (answer, True), (answer, False), (answer, False)) == [None] * 5


def test_a_429_between_error_answers_does_not_excuse_them() -> None:
    assert verdicts((WRONG, False), (WRONG, False), (BUSY, True), (WRONG, False))[-1] == "not_live"


def test_the_reason_says_what_was_asked_and_what_came() -> None:
    _, failure = judge(Health(wrong=2), WRONG, False, "deep probes")
    assert failure is not None
    assert failure.summary == "3 deep probes in a row failed: GET /: 503"
    assert failure.verdict == "retry"


@given(st.lists(st.tuples(st.sampled_from([RIGHT, WRONG, SILENT, BUSY]), st.booleans()), max_size=40))
def test_it_ends_exactly_when_a_count_is_full(history: list[tuple[Answer, bool]]) -> None:
    health = Health()
    for answer, moved in history:
        health, failure = judge(health, answer, moved, "probes")
        full = health.wrong >= IN_A_ROW if answer.kind == "wrong" else health.quiet >= IN_A_ROW
        assert (failure is not None) == full
        if answer is RIGHT:
            assert health == Health()


PAGE = """# HELP vllm:generation_tokens_total Number of generation tokens processed.
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{model_name="m"} 120.0
vllm:prompt_tokens_total{model_name="m"} 30.0
vllm:request_success_total{finished_reason="stop"} 2.0
vllm:num_requests_waiting{model_name="m"} 9.0
vllm:request_prompt_tokens_bucket{le="10"} 7.0
vllm:request_prompt_tokens_sum 700.0
coexist_server_requests_total{path="/v1/completions",status="200"} 5.0
coexist_server_requests_total{path="/v1/completions",status="429"} 1e+06
process_cpu_seconds_total 5.0
"""


def test_work_done_is_tokens_and_requests_that_ended_well() -> None:
    assert done_work(PAGE) == 120 + 30 + 2 + 5


@pytest.mark.parametrize("page", ["", "process_cpu_seconds_total 5.0", "<html>", '{"tokens_total": 5}', "tokens_total"])
def test_a_page_without_such_counters_tells_nothing(page: str) -> None:
    assert done_work(page) is None


@given(st.text())
def test_no_page_breaks_the_reader(page: str) -> None:
    assert done_work(page) is None or done_work(page) is not None


def test_a_program_that_counts_its_work_is_believed_over_its_processors() -> None:
    spinning = Sample(at_s=30.0, cpu_s=30.0, log_bytes=500)
    assert not advanced(Evidence(Sample(0.0), 7.0), Evidence(spinning, 7.0))
    assert advanced(Evidence(Sample(0.0), 7.0), Evidence(Sample(30.0), 8.0))


def test_without_a_count_the_processors_and_the_log_are_believed() -> None:
    assert advanced(Evidence(Sample(0.0)), Evidence(Sample(30.0, cpu_s=10.0)))
    assert advanced(Evidence(Sample(0.0)), Evidence(Sample(30.0, log_bytes=1), 5.0))
    assert not advanced(Evidence(Sample(0.0)), Evidence(Sample(30.0, cpu_s=0.1)))


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        (Sample(1.0), False),
        (Sample(1.0, log_bytes=1), True),
        (Sample(1.0, resident_bytes=2 * 1024**2), True),
        (Sample(1.0, resident_bytes=4096), False),
        (Sample(1.0, cpu_s=0.5), True),
        (Sample(1.0, cpu_s=0.05), False),
    ],
)
def test_without_a_count_progress_is_a_growing_log_or_memory_or_working_processors(
    after: Sample, expected: bool
) -> None:
    assert advanced(Evidence(Sample(0.0)), Evidence(after)) is expected
