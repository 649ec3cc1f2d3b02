from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.build.trtllm_bench import TrtllmBench
from toolkit.build.trtllm_checkpoint import read
from toolkit.build.trtllm_estimate import (
    Estimate,
    check_disk,
    check_gpu_memory,
    check_workspace,
    estimate,
    fitting_workers,
    unfused_workspace_bytes,
)
from toolkit.build.trtllm_machine import BuildGpu
from toolkit.config.models import Limits
from toolkit.errors import ToolkitError
from toolkit.units import GIB

LONG = (
    "checkpoint: ckpt\nfmha: disable\n"
    "limits: {max_batch_size: 8, max_input_len: 32768, max_seq_len: 32768, max_num_tokens: 32768}\n"
)
SMALL_GPU = BuildGpu(0, "GPU-aa", "L4", "8.9", 24 * GIB)


def workspace(bench: TrtllmBench, **limits: int) -> int:
    found = unfused_workspace_bytes(read(bench.folder / "ckpt"), Limits(**limits))
    assert found is not None
    return found


def test_the_workspace_is_scores_in_two_types_and_a_mask(trtllm: TrtllmBench) -> None:
    # 2 requests, 8 heads, 256 tokens: float16 and float32 scores, and a float16 mask.
    assert workspace(trtllm, max_batch_size=2, max_input_len=256) == 2 * 256**2 * (8 * (2 + 4) + 2)


@given(length=st.integers(1, 4096))
def test_the_workspace_grows_with_the_square_of_the_length(
    length: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    bench = TrtllmBench(tmp_path_factory.getbasetemp())
    bench.checkpoint()
    once = workspace(bench, max_batch_size=1, max_input_len=length, max_seq_len=8192)
    assert workspace(bench, max_batch_size=1, max_input_len=2 * length, max_seq_len=8192) == 4 * once


def test_tensor_parallelism_divides_the_heads(trtllm: TrtllmBench) -> None:
    one = workspace(trtllm, max_batch_size=1, max_input_len=1024)
    trtllm.checkpoint(2)
    assert workspace(trtllm, max_batch_size=1, max_input_len=1024) < 0.6 * one


def test_unknown_heads_give_no_number(trtllm: TrtllmBench) -> None:
    trtllm.checkpoint(num_attention_heads=None)
    assert unfused_workspace_bytes(read(trtllm.folder / "ckpt"), Limits()) is None


def test_over_what_any_gpu_has_is_refused_without_knowing_the_gpu(trtllm: TrtllmBench) -> None:
    with pytest.raises(ToolkitError, match=r"400\.0 GiB of workspace .* 288\.0 GiB") as caught:
        trtllm.describe(LONG, trtllm_version="1.2.0")
    assert caught.value.details["needed"] == 400 * GIB
    assert "limits.max_input_len" in str(caught.value.where)


def test_the_same_length_is_fine_with_fused_attention(trtllm: TrtllmBench) -> None:
    assert trtllm.describe(LONG.replace("disable", "enable"), trtllm_version="1.2.0").guards == ()


def test_over_the_gpus_memory_is_refused(trtllm: TrtllmBench) -> None:
    needed = Estimate(None, 20 * GIB, 5 * GIB)
    with pytest.raises(ToolkitError, match=r"beside its weights a GPU here has 4\.0 GiB"):
        check_workspace(trtllm.recipe(), needed, (SMALL_GPU,))
    check_workspace(trtllm.recipe(), Estimate(None, 20 * GIB, 4 * GIB), (SMALL_GPU,))


def test_over_the_recipes_own_budget_is_refused(trtllm: TrtllmBench) -> None:
    text = "checkpoint: ckpt\nfmha: disable\noptions: {workspace_budget: 64MiB}\n"
    with pytest.raises(ToolkitError, match=r"'workspace_budget' is 64\.0 MiB"):
        trtllm.describe(text, trtllm_version="1.2.0")
    assert trtllm.describe(text.replace("64MiB", "1GiB"), trtllm_version="1.2.0").guards


def test_a_budget_that_is_no_size_is_told(trtllm: TrtllmBench) -> None:
    with pytest.raises(ToolkitError, match="is not a size"):
        trtllm.describe("checkpoint: ckpt\nfmha: disable\noptions: {workspace_budget: lots}\n", trtllm_version="1.2.0")


def test_sizes_come_from_the_ranks(trtllm: TrtllmBench) -> None:
    folder = trtllm.checkpoint(2)
    (folder / "rank1.safetensors").write_bytes(b"x" * 1000)
    found = estimate(read(folder), Limits(), unfused=False)
    assert (found.weights_bytes, found.rank_bytes, found.workspace_bytes) == (1000 + 9, 1000, None)


@pytest.mark.parametrize(("available_gib", "workers"), [(100, 4), (18, 3), (6, 1)])
def test_as_many_ranks_are_built_at_once_as_memory_allows(available_gib: int, workers: int) -> None:
    assert fitting_workers(Estimate(8 * GIB, 2 * GIB, None), 4, available_gib * GIB) == workers


def test_too_little_memory_for_one_rank_is_refused_with_numbers() -> None:
    with pytest.raises(ToolkitError, match=r"6\.0 GiB of host memory; 5\.0 GiB"):
        fitting_workers(Estimate(8 * GIB, 2 * GIB, None), 4, 5 * GIB)


def test_unknown_memory_refuses_nothing() -> None:
    assert fitting_workers(Estimate(None, None, None), 4, 1) == 4
    assert fitting_workers(Estimate(8 * GIB, 2 * GIB, None), 4, None) == 4


def test_weights_that_do_not_fit_the_gpu_are_refused() -> None:
    with pytest.raises(ToolkitError, match=r"30\.0 GiB; GPU 0 has 24\.0 GiB"):
        check_gpu_memory(Estimate(None, 30 * GIB, None), (SMALL_GPU,))


def test_a_disk_without_room_is_told_before(trtllm: TrtllmBench) -> None:
    with pytest.raises(ToolkitError, match="the engine needs about") as caught:
        check_disk(1 << 60, trtllm.folder / "not" / "there", "the engine")
    assert caught.value.details["resource"] == "disk"
    check_disk(1, trtllm.folder, "the engine")
