"""The classifier against the corpus of start logs, its variants, and what is known from outside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.diagnose.variants import added_lines, variant
from toolkit.diagnose import Context, Device, Ending, Holder, classify

FOLDER = Path(__file__).with_name("logs")
EXPECTED: list[dict[str, Any]] = yaml.safe_load((FOLDER / "expected.yaml").read_text(encoding="utf-8"))
GIB = 1024**3
UNDEFINED = "ImportError: /x/flash_attn_2_cuda.so: undefined symbol: _ZN3c105ErrorC2ENS_14SourceLocationESs\n"


@pytest.mark.parametrize("entry", EXPECTED, ids=lambda entry: entry["file"])
def test_each_log_of_the_corpus_is_read_right(entry: dict[str, Any]) -> None:
    with (FOLDER / entry["file"]).open("rb") as file:
        found = classify(file)
    assert (found.kind, found.verdict, found.root_line) == (entry["class"], entry["verdict"], entry["root_line"])
    if entry["culprit"] is not None:
        assert found.culprit == entry["culprit"]
    assert found.summary
    assert found.advice
    assert "?" not in found.summary + found.advice


def test_variants_keep_their_class_and_root_line() -> None:
    total, wrong, blamed = 0, [], []
    for entry in EXPECTED:
        log = (FOLDER / entry["file"]).read_bytes()
        if not log:
            continue
        for seed in range(10):
            changed = variant(log, seed * 1000 + total)
            found = classify([changed])
            total += 1
            moved = entry["root_line"] and entry["root_line"] + added_lines(log, changed)
            if (found.kind, found.verdict, found.root_line) != (entry["class"], entry["verdict"], moved):
                wrong.append((entry["file"], seed, found.kind, found.root_line))
            if entry["class"] == "healthy" and found.kind != "healthy":
                blamed.append(entry["file"])
    assert not blamed
    assert len(wrong) <= total // 100, wrong


@pytest.mark.parametrize("size_bytes", [1, 7, 4096])
def test_the_answer_does_not_depend_on_how_the_log_is_cut_into_pieces(size_bytes: int) -> None:
    log = (FOLDER / "log-023.log").read_bytes()
    pieces = [log[at : at + size_bytes] for at in range(0, len(log), size_bytes)]
    assert classify(pieces) == classify([log])


def test_text_and_bytes_say_the_same() -> None:
    log = (FOLDER / "log-021.log").read_bytes()
    assert classify(log.decode().splitlines(keepends=True)) == classify([log])


def test_a_line_cut_by_another_rank_is_put_together() -> None:
    log = (
        b"[1,0]<stdout>:loading\n"
        b"[1,2]<stdout>:[TensorRT-LLM][ERROR] 6: The engine plan file is generated on an incom[1,3]<stdout>:hello\n"
        b"[1,2]<stdout>:patible device, expecting compute 8.9 got compute 9.0, please rebuild.\n"
    )
    found = classify([log])
    assert (found.kind, found.root_line) == ("engine_device_mismatch", 2)


def test_the_earliest_root_over_all_ranks_wins() -> None:
    first = "[1,1]<stdout>:RuntimeError: CUDA error: invalid device ordinal\n"
    found = classify(["[1,0]<stdout>:ok\n", first, "[1,0]<stdout>:OSError: [Errno 98] Address already in use\n"])
    assert (found.kind, found.root_line, found.culprit) == ("invalid_device", 2, "rank 1")
    assert "port_in_use" in found.also[0]


def test_a_cause_that_only_warns_before_ready_is_not_blamed() -> None:
    log = ["WARNING x: /x/a.so: undefined symbol: _ZN3c105ErrorC2Ev\n", "INFO:     Application startup complete.\n"]
    assert classify(log).kind == "healthy"


def test_a_warning_does_not_hide_the_same_words_said_as_an_error() -> None:
    log = ["WARNING x: /x/a.so: undefined symbol: _ZN3c105ErrorC2Ev\n", "step\n", "ImportError: " + UNDEFINED[13:]]
    found = classify([*log, "OSError: [Errno 98] Address already in use\n"])
    assert (found.kind, found.root_line) == ("abi_mismatch", 1)


def test_repeated_lines_count_again_after_ready_and_after_a_shutdown() -> None:
    error = "ERROR infer: Request for unknown model: 'm' is not found\n"
    log = [error, "INFO:     Application startup complete.\n", error, "Signal (15) received.\n", error]
    assert classify(log).root_line == 5
    taken = "OSError: [Errno 98] Address already in use\n"
    assert classify([taken, "INFO:     Application startup complete.\n", taken]).root_line == 3


def test_a_decisive_line_inside_a_line_of_megabytes_is_found() -> None:
    found = classify([b"x" * 3_000_000 + b" ImportError: libcudart.so.12: cannot open shared object file" + b"y" * 10])
    assert (found.kind, found.root_line) == ("missing_shared_library", 1)


def test_an_oom_kill_in_memory_events_explains_a_silent_end() -> None:
    log = ["[TensorRT-LLM][INFO] Loaded engine size: 70211 MiB\n"]
    assert classify(log, Ending(exit_status=-9, oom_killed=True)).kind == "host_oom"
    assert classify(log, Ending(exit_status=-9, oom_killed=None)).kind == "host_oom"
    assert classify(log, Ending(exit_status=-9, oom_killed=False)).kind == "unknown"


def test_an_oom_kill_does_not_hide_a_named_cause() -> None:
    assert classify([UNDEFINED], Ending(exit_status=1, oom_killed=True)).kind == "abi_mismatch"


def test_a_process_that_ended_is_not_still_loading() -> None:
    log = [b"Loading safetensors checkpoint shards:  50% Completed | 4/8 [00:05<00:05,  1.85it/s]\n"]
    assert classify(log).verdict == "wait"
    ended = classify(log, Ending(exit_status=1))
    assert ended.kind == "unknown"
    assert "status 1" in ended.summary


def test_silence_is_told_apart_by_compilers_and_locks() -> None:
    waits = ["2025-01-01 00:00:00,1 - INFO - flashinfer.jit: Loading JIT ops: norm\n"]
    assert classify(waits, Ending(quiet_s=60)).kind == "jit_lock_stale"
    assert classify(waits, Ending(quiet_s=60, compiling=True)).verdict == "wait"
    silent = classify(["[TensorRT-LLM][INFO] Loaded engine size: 1 MiB\n"], Ending(quiet_s=900))
    assert (silent.kind, silent.root_line) == ("start_timeout", 1)


def test_a_plan_names_who_holds_the_memory() -> None:
    log = ["[TRT] [E] 2: [virtualMemoryBuffer.cpp::resizePhysical::140] Error Code 2: OutOfMemory\n"]
    holders = (Holder("embed", 30 * GIB), Holder("llm", 10 * GIB))
    found = classify(log, context=Context("llm", 40 * GIB, 80 * GIB, holders))
    assert (found.kind, found.culprit) == ("memory_contention", "embed")
    assert "embed 30.0 GiB" in found.summary
    assert classify(log, context=Context("llm", 40 * GIB, 80 * GIB)).kind == "gpu_oom"


def test_a_fitting_gpu_of_the_node_is_suggested_instead_of_a_rebuild() -> None:
    log = ["[TRT] [E] 6: The engine plan file is generated on an incompatible device, "]
    log += ["expecting compute 8.6 got compute 9.0, please rebuild.\n"]
    here = Context(devices=(Device(0, compute="8.6"), Device(1, compute="9.0")))
    assert "GPU 1" in classify(log, context=here).advice
    assert "rebuild" not in classify(log, context=here).advice


def test_unknown_shows_the_most_suspicious_lines() -> None:
    found = classify(["INFO fine\n", "Traceback (most recent call last):\n", "KeyError: 'layer.7'\n", "exit 1\n"])
    assert found.kind == "unknown"
    assert any("KeyError" in line for line in found.also)


def test_symbols_are_told_in_words_with_their_direction() -> None:
    found = classify([UNDEFINED])
    assert "c10::Error::Error" in found.summary
    assert "old C++ ABI" in found.summary
    assert found.rule == "abi-torch-mismatch"


@pytest.mark.parametrize(
    ("line", "told", "verdict"),
    [
        ("RuntimeError: CUDA error: an illegal memory access was encountered", "illegal memory access", "retry"),
        ("[rank1]: RuntimeError: CUDA error: misaligned address", "kernel of rank 1 failed (misaligned", "retry"),
        ("k.cu:7: f: block: [0,0,0], thread: [1,0,0] Assertion `i < n` failed.", "(i < n)", "stop"),
        ("RuntimeError: CUDA error: uncorrectable ECC error encountered", "uncorrectable ECC error", "stop"),
        ("NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.", "0000:3b:00 has fallen off the bus", "stop"),
        (
            "NVRM: Xid (PCI:0000:3b:00): 31, pid=4, name=python3, MMU Fault",
            "work of python3 on GPU 0000:3b:00",
            "retry",
        ),
        ("NVRM: Xid (PCI:0000:3b:00): 31, pid=4, MMU Fault", "(Xid 31: an access to memory", "retry"),
        ("NVRM: Xid (PCI:0000:3b:00): 95, Uncontained: FBHUB", "Xid 95: a memory error that was not", "stop"),
    ],
)
def test_what_happened_to_a_kernel_or_a_gpu_is_named(line: str, told: str, verdict: str) -> None:
    found = classify([f"{line}\n"])
    assert told in found.summary
    assert (found.verdict, found.root_line) == (verdict, 1)


def test_a_gpu_that_failed_explains_what_its_kernels_said_before() -> None:
    found = classify(["RuntimeError: CUDA error: unspecified launch failure\n", "NVRM: Xid (PCI:0000:3b:00): 95, x\n"])
    assert (found.kind, found.verdict, found.root_line) == ("device_busy", "stop", 2)
    assert "Xid (PCI:0000:3b:00): 95" in found.summary


def test_a_failed_check_of_a_kernel_repeats_at_a_start_and_need_not_while_it_serves() -> None:
    line = "RuntimeError: CUDA error: device-side assert triggered\n"
    assert classify([line]).verdict == "stop"
    assert classify(["INFO:     Application startup complete.\n", line]).verdict == "retry"


LOADING = "Loading safetensors checkpoint shards:  30% Completed | 9/30 [04:10<09:51, 28.16s/it]\n"
RAISED = 'Traceback (most recent call last):\n  File "/x/engine.py", line 1, in load\nNotImplementedError: no data\n'
CHAINED = RAISED + "\nDuring handling of the above exception, another exception occurred:\n\n" + RAISED


@pytest.mark.parametrize("told", [RAISED, CHAINED])
@pytest.mark.parametrize("by", ["[TRT-LLM] [W] Fallback to regular init: ", "Exception ignored in: <function f>\n"])
def test_a_traceback_that_a_warning_tells_is_no_error(by: str, told: str) -> None:
    found = classify([by + told + LOADING])
    assert (found.kind, found.verdict) == ("healthy", "wait")


@pytest.mark.parametrize("by", ["", "[TRT-LLM] [E] Failed to initialize: ", f"[TRT-LLM] [W] Fallback: {RAISED}"])
def test_any_other_traceback_is_one(by: str) -> None:
    assert classify([by + RAISED + LOADING]).kind == "unknown"


def test_what_a_start_went_on_after_did_not_stop_it() -> None:
    failed = "curl: (7) Failed to connect to localhost port 8000: Connection refused\n"
    assert classify([failed + LOADING]).verdict == "wait"
    assert classify([LOADING + failed]).kind == "unknown"


def test_a_rank_that_was_killed_is_not_said_to_have_crashed() -> None:
    dead = "Rank 0 scheduler is dead. Please check if there are relevant logs.\n"
    assert classify([dead]).kind == "rank_crashed"
    found = classify([dead + "Exit code: -9\n"])
    assert (found.kind, found.root_line) == ("host_oom", 2)
    assert classify([dead + "Exit code: -11\n"]).kind == "rank_crashed"


def test_the_field_that_a_validation_names_is_guilty_wherever_it_stands_in_the_list() -> None:
    fields = (
        "a.first\n  Extra inputs are not permitted [type=extra_forbidden]\nsecond\n  Extra inputs are not permitted\n"
    )
    assert classify(["ValidationError: 2 validation errors for Args\n" + fields]).culprit == "a.first"


def test_a_feature_that_is_switched_off_is_not_blamed_while_the_start_goes_on() -> None:
    off = "[2025-03-14 09:00:00] Overlap schedule is not supported with this model and is switched off.\n"
    assert classify([off + LOADING]).verdict == "wait"
    assert classify([off + "ValueError: no\n"]).kind == "flag_conflict"
