from __future__ import annotations

from pathlib import Path

import pytest

from toolkit.build.foreign import Ended, HungError
from toolkit.build.trtllm_failures import failure, fell_back, hung, root_line, said

LOG = Path("/logs/tiny.build.log")
# Cut from public build logs.
OUT_OF_MEMORY = """[05/06/2024-19:03:35] [TRT] [E] 2: [virtualMemoryBuffer.cpp::140] Error Code 2: OutOfMemory
[05/06/2024-19:03:36] [TRT] [W] Requested amount of GPU memory (21474836480 bytes) could not be allocated.
[05/06/2024-19:03:37] [TRT-LLM] [E] Engine building failed, please check the error log.
AttributeError: 'NoneType' object has no attribute 'save'
"""
COLOURED = "\x1b[31m[06/28/2024-16:05:19] [TRT-LLM] [E] Engine building failed, please check the error log.\x1b[0m\n"


@pytest.mark.parametrize(
    ("status", "output", "code", "says"),
    [
        (-9, "building", "killed", "dmesg"),
        (137, "", "killed", "workers: 1"),
        (1, "build.sh: line 1: 41317 Killed    trtllm-build --x\n", "killed", "was killed"),
        (1, OUT_OF_MEMORY, "gpu_memory", "it asked for 20.0 GiB"),
        (1, "torch.OutOfMemoryError: CUDA out of memory.", "gpu_memory", "ran out of GPU memory"),
        (2, "trtllm-build: error: unrecognized arguments: --x", "refused_options", "unrecognized arguments: --x"),
        (2, "trtllm-build: error: argument --y: invalid choice: 'z'", "refused_options", "invalid choice"),
        (1, "OSError: [Errno 28] No space left on device", "no_space", "no space"),
        (-6, "terminate called recursively", "build_failed", "SIGABRT"),
        (1, COLOURED, "build_failed", "[E] Engine building failed"),
        (3, "", "build_failed", "exit status 3: no output"),
    ],
)
def test_each_end_has_its_reason(status: int, output: str, code: str, says: str) -> None:
    error = failure(Ended(status, output, 1.0), "trtllm-build", LOG, Path("/tmp"))
    assert error.code == code
    assert says in str(error)


def test_the_earliest_error_is_the_root() -> None:
    assert root_line(OUT_OF_MEMORY).startswith("[05/06/2024-19:03:35] [TRT] [E] 2:")
    assert root_line("one\ntwo\n") == "two"


def test_what_the_builder_said_is_found_through_colours() -> None:
    assert "Engine building failed" in str(said(COLOURED))
    assert said("all is well") is None


def test_a_fallback_is_found_in_the_log() -> None:
    line = "[TensorRT-LLM][WARNING] Fall back to unfused MHA because of unsupported head size 128 in sm_75."
    assert fell_back(f"x\n{line}\n{line}\n") == line
    assert fell_back("x") is None


def test_a_hang_names_the_last_line() -> None:
    error = hung(HungError(180.0, "MPI_Init …\n"), "trtllm-build", LOG)
    assert "3 min 00 s" in error.what
    assert "MPI_Init" in error.what
    assert "it printed nothing" in hung(HungError(180.0, ""), "trtllm-build", LOG).what
