from __future__ import annotations

import copy
import json

from toolkit.bench import report

SERVICE = {
    "name": "llm",
    "attempts": 1,
    "gpus": 1,
    "stages": [
        {"state": "INIT", "seconds": 0.1, "parts": {"context": None}},
        {"state": "PRELOAD", "seconds": 2.0, "parts": {"context": 0.5, "weights": 1.0}},
        {"state": "PRIME", "seconds": 3.0, "parts": {"context": None}},
    ],
    "first_token_ms": {"first": 10.0, "p50": 9.0, "p99": 9.5},
    "proof_ms": [50.0, 10.0, 9.0],
    "late_compiles": 0,
    "canary_ok": True,
    "resident_mib": 500,
    "resident_jitter": 0.01,
    "gpu_climb_percent_per_s": 50.0,
    "load": {"unit": "tokens", "per_s": 100.0, "to_80_percent_s": 0.25, "failed": 0, "refused": 0},
}


def boots(count=2, **changes):
    service = {**copy.deepcopy(SERVICE), **changes}
    return [{"seconds": 5.0, "services": [service]} for _ in range(count)]


def target(document, id_):
    return next(each for each in document["targets"] if each["id"] == id_)


def test_a_start_that_meets_everything_passes():
    found = report.document("d", {"cold": boots(), "full": boots(5)}, {"cold": 2, "full": 5})
    assert found["pass"]
    assert {each["pass"] for each in found["targets"]} == {True}


def test_the_whole_warm_up_is_judged_not_the_comparison():
    slow = {"first": 9000.0, "p50": 9.0, "p99": 9.5}
    found = report.document("d", {"full": boots(), "none": boots(first_token_ms=slow)}, {"full": 2, "none": 2})
    assert found["pass"]
    assert [(row["warmup"], row["first_over_steady"]) for row in found["without_warmup"]] == [
        ("none", 1000.0),
        ("full", 10.0 / 9.0),
    ]


def test_a_late_compile_misses_the_target():
    found = report.document("d", {"full": boots(late_compiles=1)}, {"full": 2})
    assert not found["pass"]
    assert target(found, "late_compiles")["measured"] == 2


def test_compiles_that_nobody_sees_are_not_judged():
    found = report.document("d", {"full": boots(late_compiles=None)}, {"full": 2})
    assert target(found, "late_compiles")["pass"] is None


def test_without_a_gpu_the_first_token_is_shown_and_not_judged():
    slow = {"first": 9000.0, "p50": 9000.0, "p99": 9000.0}
    found = report.document("d", {"full": boots(gpus=0, first_token_ms=slow)}, {"full": 2})
    assert found["pass"]
    assert target(found, "first_token_p99_ms")["measured"] == 9000.0
    assert any("no service has a GPU" in note for note in found["notes"])


def test_few_boots_say_that_there_is_no_99th_percentile():
    found = report.document("d", {"full": boots(3)}, {"full": 3})
    assert found["conditions"][0]["services"][0]["first_token_ms"]["p99"] is None
    assert any("needs 100 boots: of 3," in note for note in found["notes"])


def test_a_hundred_boots_have_one():
    found = report.document("d", {"full": boots(100)}, {"full": 100})
    assert found["conditions"][0]["services"][0]["first_token_ms"]["p99"] == 10.0


def test_parts_are_those_of_preload():
    found = report.document("d", {"full": boots()}, {"full": 2})
    assert found["conditions"][0]["services"][0]["parts"] == {"context": 0.5, "weights": 1.0}


def test_a_service_without_requests_has_no_load_and_no_verdict_on_it():
    nothing = {"first": None, "p50": None, "p99": None}
    found = report.document("d", {"full": boots(load=None, first_token_ms=nothing, proof_ms=[])}, {"full": 2})
    assert target(found, "to_80_percent_s")["pass"] is None
    assert json.dumps(found)


def test_requests_that_failed_under_load_miss_the_target_and_those_turned_away_do_not():
    refused = {**SERVICE["load"], "refused": 9}
    assert report.document("d", {"full": boots(load=refused)}, {"full": 2})["pass"]
    found = report.document("d", {"full": boots(load={**SERVICE["load"], "failed": 1})}, {"full": 2})
    assert (found["pass"], target(found, "failed_requests")["measured"]) == (False, 2)


def test_a_start_that_needed_a_second_attempt_is_told():
    found = report.document("d", {"full": [*boots(2), *boots(1, attempts=2)]}, {"full": 3})
    assert "'llm' began more than once in 1 of 3 boots (full)" in found["notes"]
