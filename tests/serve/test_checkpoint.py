from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from toolkit.errors import ToolkitError
from toolkit.serve.checkpoint import StoredTensor, check_tensors, read_checkpoint, read_header

SHAPES = {"a": (4, 3), "b": (5,)}


def save(path: Path, dtype: torch.dtype = torch.float32) -> Path:
    save_file({name: torch.zeros(shape).to(dtype) for name, shape in SHAPES.items()}, path)
    return path


def test_a_header_tells_dtype_and_shape(tmp_path: Path) -> None:
    path = save(tmp_path / "model.safetensors", torch.bfloat16)
    found = read_header(path)
    assert {name: (t.file, t.dtype, t.shape) for name, t in found.items()} == {
        name: (path, "BF16", shape) for name, shape in SHAPES.items()
    }


@pytest.mark.parametrize("missing", [1, 40, 60])
def test_a_file_that_is_too_short_is_refused(missing: int, tmp_path: Path) -> None:
    path = save(tmp_path / "model.safetensors")
    path.write_bytes(path.read_bytes()[:-missing])
    with pytest.raises(ToolkitError, match="shorter than its header says") as caught:
        read_header(path)
    assert caught.value.where == str(path)


def test_a_file_that_is_too_long_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path / "model.safetensors")
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(ToolkitError, match="longer than its header says"):
        read_header(path)


def test_a_header_that_is_cut_off_is_told_apart(tmp_path: Path) -> None:
    path = save(tmp_path / "model.safetensors")
    path.write_bytes(path.read_bytes()[:30])
    with pytest.raises(ToolkitError, match="the header is cut off"):
        read_header(path)


@pytest.mark.parametrize("content", [b"", b"abc", b"\xff" * 64, (8).to_bytes(8, "little") + b"not json"])
def test_what_is_no_safetensors_file_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(ToolkitError):
        read_header(path)


@given(content=st.binary(max_size=200))
def test_no_bytes_whatever_make_it_fail_otherwise(content: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("bytes") / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(ToolkitError):
        read_header(path)


@given(
    row=st.recursive(
        st.none() | st.integers() | st.text(max_size=5),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_a_broken_row_is_a_clear_error(row: object, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("rows") / "model.safetensors"
    text = json.dumps({"a": row}).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text)
    with pytest.raises(ToolkitError, match="'a' is broken"):
        read_header(path)


def test_a_row_whose_bytes_do_not_fit_its_shape_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    text = json.dumps({"a": {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}}).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"\0" * 8)
    with pytest.raises(ToolkitError, match="no F32 tensor"):
        read_header(path)


def test_missing_shards_are_listed(tmp_path: Path) -> None:
    save(tmp_path / "one.safetensors")
    index = {"weight_map": {"a": "one.safetensors", "b": "two.safetensors", "c": "three.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ToolkitError, match=r"2 of 3 shards are missing: three.safetensors, two.safetensors"):
        read_checkpoint(tmp_path)


def test_shards_are_read_together(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(2)}, tmp_path / "one.safetensors")
    save_file({"b": torch.zeros(3)}, tmp_path / "two.safetensors")
    index = {"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert sorted(read_checkpoint(tmp_path)) == ["a", "b"]


def test_a_folder_with_other_weights_names_them(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(ToolkitError, match=r"pytorch_model\.bin"):
        read_checkpoint(tmp_path)


def test_a_missing_tensor_is_named_with_the_nearest(tmp_path: Path) -> None:
    found = {"model.embed.weight": StoredTensor(tmp_path, "F32", (2, 2))}
    with pytest.raises(ToolkitError, match=r"'model.embeds.weight'.*nearest.*'model.embed.weight'"):
        check_tensors(found, {"model.embeds.weight": (2, 2)}, tmp_path)


def test_a_wrong_shape_says_both(tmp_path: Path) -> None:
    found = {"a": StoredTensor(tmp_path, "F32", (2, 3))}
    with pytest.raises(ToolkitError, match=r"\[2, 3\].*\[3, 2\]"):
        check_tensors(found, {"a": (3, 2)}, tmp_path)


@pytest.mark.parametrize("dtype", ["I8", "U8", "F8_E4M3", "I64", "F4"])
def test_a_dtype_that_is_no_float_is_refused(dtype: str, tmp_path: Path) -> None:
    with pytest.raises(ToolkitError, match=dtype):
        check_tensors({"a": StoredTensor(tmp_path, dtype, (2,))}, {"a": (2,)}, tmp_path)
