from __future__ import annotations

from toolkit.supervise.diagnose_log import diagnose

UNDEFINED = "ImportError: /x/flash_attn_2_cuda.so: undefined symbol: _ZN3c105ErrorC2ENS_14SourceLocationESs\n"


def test_a_known_cause_becomes_a_failure_that_says_whether_a_restart_helps() -> None:
    failure = diagnose(f"INFO starting\n{UNDEFINED}", 1)
    assert (failure.kind, failure.verdict, failure.culprit) == ("abi_mismatch", "stop", "flash_attn_2_cuda.so")
    assert failure.line == UNDEFINED.strip()
    assert failure.advice


def test_an_unknown_end_is_told_plainly_with_the_most_suspicious_lines() -> None:
    failure = diagnose("fine\nKeyError: 'layer.7'\nbye\n", 1)
    assert (failure.kind, failure.verdict) == ("exit", "retry")
    assert "exited with status 1" in failure.summary
    assert "KeyError" in (failure.advice or "")


def test_the_end_of_a_healthy_server_is_told_plainly() -> None:
    assert diagnose("INFO:     Application startup complete.\n", -15).summary.startswith("was killed by SIGTERM")


def test_a_stall_is_waited_for_while_a_compiler_runs_and_cleaned_up_after_a_stale_lock() -> None:
    log = "2025-01-01 00:00:00,1 - INFO - flashinfer.jit: Loading JIT ops: norm\n"
    assert diagnose(log, None, compiling=True).verdict == "wait"
    assert diagnose(log, None).verdict == "retry_after_cleanup"


def test_an_oom_kill_is_named() -> None:
    assert diagnose("Loading weights\n", -9, oom_killed=True).kind == "host_oom"
