from __future__ import annotations

import io

import pytest
from rich.console import Console

from toolkit.cli import picture
from toolkit.errors import ToolkitError
from toolkit.warm import Progress


def drawn(part, width=80):
    console = Console(width=width, file=io.StringIO())
    console.print(part)
    return console.file.getvalue()


def service(name="llm", state="SERVING", seconds=(0.1, 1.0, 3.0), **changes):
    stages = [
        {"state": stage, "seconds": took, "parts": {"context": 0.5 if stage == "PRELOAD" else None, "weights": None}}
        for stage, took in zip(picture.STAGES, seconds, strict=False)
    ]
    return {
        "name": name, "state": state, "attempt": 1, "pid": 7, "port": 8001,
        "stages": stages, "gpus": [], "cpus": "0", "restarts": 0,
        "first_token_ms": {"first": 50.0, "p50": 40.0, "p99": 45.0},
        "canary": {"ok": True, "expected": " Paris", "got": " Paris.\n\nMore"}, "last_failure": None, **changes,
    }  # fmt: skip


def status(*services):
    return {"control": None, "services": list(services)}


def test_a_start_without_a_supervisor_is_one_line():
    step = {"pid": 7, "step": "build", "subject": "llm", "seconds": 75.0, "text": "building engine 'llm'"}
    told = picture.start({"deployment": "rag", "starting": step})
    assert told == "rag is starting (pid 7): building engine 'llm' for 1 min 15 s"


def test_several_deployments_are_a_line_each_whatever_they_are_at():
    runs = {**status(service(), service("b"), service("c", "PRIME")), "starting": None, "ready": False, "control": "X"}
    starts = {**status(service(state="INIT")), "starting": {"text": "building engine 'llm'"}, "ready": False}
    found = [("a", runs), ("b", starts), ("c", ToolkitError("the supervisor (pid 9) does not answer"))]
    lines = [" ".join(line.split()) for line in drawn(picture.deployments(found), 100).splitlines()]
    assert lines[1:] == [
        "a no 1 PRIME, 2 SERVING X",
        "b no starting: building engine 'llm' -",
        "c ? the supervisor (pid 9) does not answer -",
    ]


def test_a_starting_service_shows_its_stage_and_what_it_does():
    text = drawn(picture.live(status(service(state="PRIME")), {}, {"llm": "shape 3"}))
    assert "PRIME" in text
    assert "shape 3" in text


def test_a_failed_service_shows_why():
    failure = {"summary": "out of memory"}
    text = drawn(picture.live(status(service(state="FAILED", last_failure=failure)), {}, {"llm": "old news"}))
    assert "out of memory" in text
    assert "old news" not in text


@pytest.mark.parametrize(
    ("state", "progress", "done"),
    [
        ("INIT", None, 0),
        ("PRIME", None, 2),
        ("PRIME", Progress("PRIME", 1, 2, "shapes"), 2.495),
        ("PRIME", Progress("PRELOAD", 1, 2, "weights"), 2),
        ("PRIME", Progress("PRIME", 9, 2, "shapes"), 2.99),
        ("SERVING", None, 3),
        ("BACKOFF", None, 0),
    ],
)
def test_a_bar_counts_stages_and_the_part_of_the_stage_at_hand(state, progress, done):
    assert picture.stages_done(state, progress) == pytest.approx(done)


def test_bars_of_two_services_share_one_time_axis():
    text = drawn(picture.timeline(status(service(), service("embed", seconds=(0.1, 1.0, 0.95)))))
    long, short = (line.count(picture.BLOCK) for line in text.splitlines()[1:3])
    assert long == picture.TIMELINE_WIDTH
    assert short == long // 2


def test_first_request_is_shown_beside_steady_ones_and_the_canary_in_one_line():
    row = drawn(picture.first_tokens(status(service()))).splitlines()[1]
    assert "1.25x" in row
    assert "Paris. More" in row


def test_a_page_as_canary_is_cut_and_a_wrong_answer_is_not():
    page = {"ok": True, "expected": "Directory", "got": "<html> " + "word " * 40}
    assert "word word …" in drawn(picture.first_tokens(status(service(canary=page))))
    wrong = drawn(picture.first_tokens(status(service(canary={**page, "ok": False}))))
    assert wrong.count("word") == 40


def test_unknown_times_are_dashes():
    unknown = {"first": None, "p50": None, "p99": None}
    text = drawn(picture.first_tokens(status(service(first_token_ms=unknown))))
    assert "None" not in text


def test_parts_show_only_what_was_told():
    text = drawn(picture.parts(status(service())))
    assert "context" in text
    assert "weights" not in text


def test_the_overview_fits_without_losing_a_service():
    text = drawn(picture.overview(status(service(), service("embed", state="BACKOFF"))))
    assert "BACKOFF" in text


def test_what_is_off_plan_is_told_with_its_service():
    text = "1 of 4 threads are not held to the plan: worker (pid 10, thread 12) may run on 0-3"
    placement = {"on_plan_percent": 75.0, "threads": 4, "drift": [text]}
    shown = status(service(placement=placement), service("embed", placement=None))
    assert "75% of 4" in drawn(picture.overview(shown), width=200)
    assert drawn(picture.remarks(shown), width=200).strip() == f"llm: {text}"


def test_a_last_failure_and_the_control_address_are_lines_of_their_own():
    told = {"summary": "out of memory", "attempt": 2, "at": "2026-01-31T12:00:00.000Z"}
    failed = service(state="BACKOFF", last_failure=told)
    text = drawn(picture.remarks({"control": "http://127.0.0.1:7000", "services": [failed]}), width=200)
    assert text.splitlines()[:2] == [
        "control API: http://127.0.0.1:7000",
        "llm: last failure (attempt 2, 2026-01-31T12:00:00.000Z): out of memory",
    ]


def test_what_a_start_does_or_waits_for_is_a_line_until_it_serves():
    starting = service(state="PRIME", activity="key 3 of 22: 4x128")
    shown = drawn(picture.remarks(status(starting, service("embed", activity=None))), width=200)
    assert shown.strip() == "llm: PRIME: key 3 of 22: 4x128"


def test_a_compile_after_ready_is_a_line_with_its_key():
    late = [{"channel": "compilers", "key": None, "count": 1}, {"channel": "triton", "key": "ABC/add", "count": 1}]
    text = drawn(picture.remarks(status(service(late_compiles=1, late_compiled=late))), width=200)
    assert text.strip() == "llm: compiled after READY, 1 in all; the last seen by triton (ABC/add)"
    unnamed = picture.remarks(status(service(late_compiles=3, late_compiled=late[:1])))
    assert drawn(unnamed, width=200).strip() == "llm: compiled after READY, 3 in all; the last seen by compilers"
