from __future__ import annotations

import pytest

from toolkit.errors import ToolkitError
from toolkit.supervise import failures
from toolkit.supervise.lifecycle import Failure
from toolkit.supervise.process import UNSEEN_STATUS
from toolkit.supervise.window import Stall
from toolkit.warm.model import CanaryResult, WarmupError


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (0, "exited with status 0"),
        (3, "exited with status 3"),
        (-9, "was killed by SIGKILL"),
        (-250, "was killed by signal 250"),
        (UNSEEN_STATUS, "ended, unseen by its supervisor of the time"),
    ],
)
def test_exit_statuses_in_words(status: int, words: str) -> None:
    assert failures.describe_exit(status) == words


def test_a_plain_diagnosis_is_the_exit_and_the_last_line() -> None:
    assert failures.plain_diagnosis("one\nOOM\n", -9) == Failure(
        "was killed by SIGKILL; last line of its log: OOM", line="OOM"
    )
    assert failures.plain_diagnosis("", None).summary == "it lives; its log is empty"


@pytest.mark.parametrize(
    ("words", "culprit", "advice"),
    [
        ("Traceback…\nModuleNotFoundError: No module named 'uvicorn'", "uvicorn", "Install 'uvicorn'"),
        ("/opt/x/bin/python: No module named vllm.entrypoints", "vllm.entrypoints", "Install 'vllm.entrypoints'"),
        ("python: can't open file '/srv/serve.py': [Errno 2] No such file or directory", "/srv/serve.py", "Name"),
        ("    x = = 1\nSyntaxError: invalid syntax", "invalid syntax", "Correct the program"),
        ("usage: s\ns: error: the following arguments are required: --model", "--model", "Give"),
        ("/bin/sh: line 1: mpirun: command not found", "mpirun", "Install 'mpirun'"),
        ("sh: 1: mpirun: not found", "mpirun", "Install 'mpirun'"),
    ],
)
def test_what_every_start_would_say_again_is_not_retried(words: str, culprit: str, advice: str) -> None:
    found = failures.plain_diagnosis(f"starting\n{words}\n", 1)
    assert (found.verdict, found.culprit) == ("stop", culprit)
    assert (found.advice or "").startswith(advice)


@pytest.mark.parametrize(
    ("words", "status"),
    [
        ("ModuleNotFoundError: No module named 'apex'\nserving without apex", 1),
        ("ModuleNotFoundError: No module named 'apex'", -9),
        ("ModuleNotFoundError: No module named 'apex'", None),
        ("ConnectionError: 404: model not found on the hub", 1),
    ],
)
def test_what_only_looks_like_it_is_retried(words: str, status: int | None) -> None:
    assert failures.plain_diagnosis(words, status).verdict == "retry"


@pytest.mark.parametrize(("status", "verdict"), [(127, "stop"), (126, "stop"), (1, "retry"), (255, "retry")])
def test_a_program_that_cannot_be_executed_is_not_tried_again(status: int, verdict: str) -> None:
    assert failures.plain_diagnosis("serve: permission denied", status).verdict == verdict


def test_a_stall_keeps_the_verdict_and_says_what_stood_still_for_how_long_and_where() -> None:
    found = failures.stalled(Failure("downloads a model", "wait"), Stall(42.0), "canary")
    assert (found.verdict, found.kind) == ("wait", "stalled")
    assert found.summary == (
        "no progress for 42.0 s: its log, memory, files and processors stand still, last seen: canary; "
        "downloads a model"
    )


def test_a_stall_that_spins_is_told_apart_and_so_is_what_gives_it_longer() -> None:
    found = failures.stalled(Failure("it lives"), Stall(900.0, spins=True))
    assert "15 min 00 s: its processors work, but its log, memory and files stand still; it lives" in found.summary
    assert "preload_window" in (found.advice or "")
    assert "quiet_window" in (failures.stalled(Failure("it lives"), Stall(30.0)).advice or "")
    assert failures.stalled(Failure("it lives", advice="Wait."), Stall(30.0)).advice == "Wait."


def test_a_wrong_answer_is_not_retried_and_both_sides_are_kept() -> None:
    error = WarmupError("wrong", code="canary_wrong", canary={"ok": False, "expected": "Paris", "got": "Rome"})
    found = failures.from_warmup(error)
    assert (found.verdict, found.canary) == ("stop", CanaryResult(False, "Paris", "Rome"))


def test_other_trouble_of_the_warm_up_is_retried() -> None:
    assert failures.from_warmup(WarmupError("unsteady", code="never_steady")).verdict == "retry"


def test_an_error_keeps_its_hint_as_advice() -> None:
    found = failures.from_error(ToolkitError("port taken", "here", "Stop it.", code="port_in_use"), "stop")
    assert (found.summary, found.kind, found.advice) == ("port taken", "port_in_use", "Stop it.")


def test_what_was_seen_of_a_living_process_leads_and_the_diagnosis_of_its_log_follows() -> None:
    seen = Failure("3 deep probes in a row failed: 503", "retry", "not_live")
    found = Failure("CUDA ran out of memory", "retry_after_cleanup", "gpu_oom", "llm", "OutOfMemoryError", "Lower it.")
    told = failures.not_working(seen, found)
    assert told.summary == "3 deep probes in a row failed: 503: CUDA ran out of memory"
    assert (told.verdict, told.kind, told.line, told.advice) == (
        "retry_after_cleanup",
        "not_live",
        "OutOfMemoryError",
        "Lower it.",
    )
    assert failures.not_working(seen, Failure("it waits", "wait", "lock")).verdict == "retry"


def test_a_log_that_explains_nothing_only_lends_its_last_line() -> None:
    seen = Failure("3 deep probes in a row failed: 503", "retry", "not_live")
    told = failures.not_working(seen, failures.plain_diagnosis("up\n", None))
    assert (told.summary, told.line) == (seen.summary, "up")
