from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from toolkit.serve.checkpoint import read_checkpoint, read_header
from toolkit.serve.weight_map import Source
from toolkit.serve.weights import CheckpointReader, load_tensors, write_tensors


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_what_is_written_is_read_back_by_the_library(dtype: torch.dtype, tmp_path: Path) -> None:
    tensors = {"a": torch.randn(3, 5).to(dtype), "b": torch.randn(7).to(dtype)}
    path = tmp_path / "model.safetensors"
    write_tensors(path, {name: (tuple(t.shape), t.dtype) for name, t in tensors.items()}, tensors.values())
    for name, tensor in load_file(path).items():
        torch.testing.assert_close(tensor, tensors[name], rtol=0, atol=0)
        torch.testing.assert_close(load_tensors(path, "cpu")[name], tensor, rtol=0, atol=0)
    assert set(read_header(path)) == set(load_tensors(path, "cpu")) == set(tensors)


def test_data_begins_on_a_cache_line(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    write_tensors(path, {"a": ((2,), torch.float32)}, [torch.zeros(2)])
    assert (path.stat().st_size - 8) % 64 == 0


def test_sources_are_joined_along_their_rows(tmp_path: Path) -> None:
    save_file({"q": torch.ones(2, 3), "k": torch.zeros(1, 3)}, tmp_path / "model.safetensors")
    with CheckpointReader(read_checkpoint(tmp_path)) as reader:
        joined = reader.joined([Source("q", (2, 3)), Source("k", (1, 3))], torch.bfloat16)
    assert joined.dtype == torch.bfloat16
    assert joined.tolist() == [[1.0] * 3, [1.0] * 3, [0.0] * 3]
