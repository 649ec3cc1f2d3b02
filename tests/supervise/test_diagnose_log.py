from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from toolkit.diagnose import Context, Device
from toolkit.host.model import Holder
from toolkit.supervise.diagnose_log import diagnose
from toolkit.supervise.logs import LogView
from toolkit.supervise.outcome import Outcome
from toolkit.units import GIB

UNDEFINED = "ImportError: /x/flash_attn_2_cuda.so: undefined symbol: _ZN3c105ErrorC2ENS_14SourceLocationESs\n"


def outcome(tmp_path: Path, text: str, exit_status: int | None, start_bytes: int = 0, **seen: Any) -> Outcome:
    log = tmp_path / "llm.log"
    log.write_text(text)
    return Outcome("llm", LogView(log, start_bytes), exit_status, **seen)


def test_a_known_cause_becomes_a_failure_that_says_whether_a_restart_helps(tmp_path: Path) -> None:
    failure = diagnose(outcome(tmp_path, f"INFO starting\n{UNDEFINED}", 1))
    assert (failure.kind, failure.verdict, failure.culprit) == ("abi_mismatch", "stop", "flash_attn_2_cuda.so")
    assert failure.line == UNDEFINED.strip()
    assert failure.advice


def test_an_unknown_end_is_told_plainly_with_the_most_suspicious_lines(tmp_path: Path) -> None:
    failure = diagnose(outcome(tmp_path, "fine\nKeyError: 'layer.7'\nbye\n", 1))
    assert (failure.kind, failure.verdict) == ("exit", "retry")
    assert "exited with status 1" in failure.summary
    assert "KeyError" in (failure.advice or "")


def test_the_end_of_a_healthy_server_is_told_plainly(tmp_path: Path) -> None:
    found = diagnose(outcome(tmp_path, "INFO:     Application startup complete.\n", -15))
    assert found.summary.startswith("was killed by SIGTERM")


def test_a_stall_is_waited_for_while_a_compiler_runs_and_cleaned_up_after_a_stale_lock(tmp_path: Path) -> None:
    log = "2025-01-01 00:00:00,1 - INFO - flashinfer.jit: Loading JIT ops: norm\n"
    assert diagnose(outcome(tmp_path, log, None, compiling=True, quiet_s=30.0)).verdict == "wait"
    assert diagnose(outcome(tmp_path, log, None, quiet_s=30.0)).verdict == "retry_after_cleanup"


def test_the_whole_log_of_the_attempt_is_read_and_nothing_before_it(tmp_path: Path) -> None:
    before = "OSError: [Errno 98] Address already in use\n"
    text = before + UNDEFINED + "still here\n" * 100_000
    found = diagnose(outcome(tmp_path, text, 1, len(before)))
    assert (found.kind, found.line) == ("abi_mismatch", UNDEFINED.strip())


def test_a_kill_that_the_control_group_counted_is_host_oom(tmp_path: Path) -> None:
    assert diagnose(outcome(tmp_path, "Loading weights\n", -9, oom_killed=True)).kind == "host_oom"
    assert diagnose(outcome(tmp_path, "Loading weights\n", -9, oom_killed=False)).kind == "exit"


def test_a_compiler_below_it_makes_a_stall_worth_waiting_for(tmp_path: Path) -> None:
    seen = {"quiet_s": 12.5}
    assert diagnose(outcome(tmp_path, "Loading weights\n", None, compiling=True, **seen)).verdict == "wait"
    assert diagnose(outcome(tmp_path, "Loading weights\n", None, compiling=False, **seen)).kind == "start_timeout"


@pytest.mark.parametrize(
    ("quiet_s", "told"), [(0.3, "for 300 ms;"), (12.5, "for 12.5 s;"), (930.0, "for 15 min 30 s;")]
)
def test_a_hang_for_no_known_reason_is_told_with_its_real_time_and_tried_again(
    tmp_path: Path, quiet_s: float, told: str
) -> None:
    found = diagnose(outcome(tmp_path, "Loading weights\n", None, quiet_s=quiet_s))
    assert (found.verdict, found.line) == ("retry", "Loading weights")
    assert told in found.summary


def test_who_lives_and_was_not_said_to_stand_still_is_no_silent_start(tmp_path: Path) -> None:
    assert diagnose(outcome(tmp_path, "Loading weights\n", None)).kind == "exit"


def test_memory_that_a_stranger_holds_makes_a_lack_of_memory_a_neighbours(tmp_path: Path) -> None:
    text = "[TRT] [E] 2: [virtualMemoryBuffer.cpp::resizePhysical::140] Error Code 2: OutOfMemory (no further)\n"
    plan = Context("llm", budget_bytes=20 * GIB, total_bytes=24 * GIB)
    alone = diagnose(outcome(tmp_path, text, 1), plan)
    assert (alone.kind, alone.culprit) == ("gpu_oom", None)
    assert "the plan gives llm 20.0 GiB of 24.0 GiB" in alone.summary
    stranger = Holder(pid=77, name="blender", used_bytes=9 * GIB)
    found = diagnose(outcome(tmp_path, text, 1, others=(stranger,)), plan)
    assert (found.kind, found.culprit) == ("memory_contention", "process 77 (blender)")
    assert "process 77 (blender) 9.0 GiB" in found.summary


def test_a_wrong_gpu_that_another_one_of_the_host_could_replace_is_a_matter_of_assignment(tmp_path: Path) -> None:
    text = "[E] 6: The engine plan file is generated on an incompatible device, expecting compute 8.6 got compute 8.0\n"
    host = Context("llm", devices=(Device(0, "GPU-0", "8.6"), Device(1, "GPU-1", "8.0")))
    found = diagnose(outcome(tmp_path, text, 1), host)
    assert (found.kind, "Assign GPU 1" in (found.advice or "")) == ("engine_device_mismatch", True)


def test_a_missing_module_and_a_bad_option_are_not_tried_again(tmp_path: Path) -> None:
    missing = "Traceback (most recent call last):\n  import vllm\nModuleNotFoundError: No module named 'vllm'\n"
    found = diagnose(outcome(tmp_path, missing, 1))
    assert (found.verdict, found.culprit) == ("stop", "vllm")
    found = diagnose(outcome(tmp_path, "serve: error: unrecognized arguments: --nope\n", 2))
    assert (found.verdict, found.culprit) == ("stop", "--nope")
