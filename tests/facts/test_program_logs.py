from __future__ import annotations

import pytest

from toolkit.facts import program_logs
from toolkit.facts.program_logs import LoggedPart
from toolkit.units import GIB

VLLM = """INFO 06-19 23:05:01 [loader.py:447] Loading weights took 0.69 seconds
INFO 06-19 23:05:01 [gpu_model_runner.py:1273] Model loading took 3.5 GiB and 0.902026 seconds
INFO 06-19 23:05:18 [monitor.py:33] torch.compile takes 7.51 s in total
INFO 06-19 23:05:18 [gpu_worker.py:298] Available KV cache memory: 8.5 GiB
INFO 06-19 23:05:35 [gpu_model_runner.py:1608] Graph capturing finished in 17 secs, took 0.5 GiB"""

SGLANG = """[2025-11-30 TP0] Load weight end. type=X, dtype=torch.bfloat16, avail mem=131.08 GB, mem usage=8.0 GB.
[2025-11-30 TP1] Load weight end. type=X, dtype=torch.bfloat16, avail mem=131.08 GB, mem usage=9.0 GB.
[2025-11-30 TP0] KV Cache is allocated. #tokens: 834615, K size: 54.5 GB, V size: 54.5 GB
[2025-11-30 TP0] Capture cuda graph end. Time elapsed: 11.35 s. mem usage=1.0 GB. avail mem=11.22 GB."""


def test_vllm_tells_the_parts_of_its_start() -> None:
    assert program_logs.parts(VLLM.splitlines()) == {
        "weights": LoggedPart(0.69, round(3.5 * GIB)),
        "compile": LoggedPart(7.51),
        "kv_cache": LoggedPart(None, round(8.5 * GIB)),
        "graphs": LoggedPart(17.0, GIB // 2),
    }


def test_of_several_ranks_the_largest_counts_and_keys_and_values_are_added() -> None:
    found = program_logs.parts(SGLANG.splitlines())
    assert found["weights"] == LoggedPart(None, 9 * GIB)
    assert found["kv_cache"] == LoggedPart(None, 109 * GIB)
    assert found["graphs"] == LoggedPart(11.35, GIB)


@pytest.mark.parametrize(
    "line",
    [
        "INFO 02-18 04:51:45 backends.py:321] Compiling a graph for general shape takes 0.34 s",
        "Building extension module fused_moe...",
        "[1/3] /usr/local/cuda/bin/nvcc -gencode=arch=compute_90 -c kernel.cu -o kernel.o",
        "Recompiling function forward in model.py:12",
        "[2026-01-15 TP0] Capture cuda graph begin. This can take up to several minutes.",
    ],
)
def test_a_line_that_says_that_something_is_compiled_is_known(line: str) -> None:
    assert program_logs.compiling(line)


@pytest.mark.parametrize(
    "line",
    [
        "INFO backends.py:115] Directly load the compiled graph for shape None from the cache",
        "GET /v1/completions 200",
        "[12/30] loaded shard",
        "",
    ],
)
def test_a_cache_that_is_read_and_ordinary_lines_are_no_compile(line: str) -> None:
    assert program_logs.compiling(line) is None
