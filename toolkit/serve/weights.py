"""Weights in safetensors files: mapped into memory for serving, and written one tensor at a time."""

from __future__ import annotations

import json
import mmap
import os
import warnings
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from toolkit.serve.checkpoint import StoredTensor, read_header
from toolkit.serve.weight_map import Source

_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_DTYPE_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
# Tensors begin on a cache line, so that vector loads of mapped weights are aligned.
_ALIGNMENT_BYTES = 64


def load_tensors(path: Path, device: str) -> dict[str, Tensor]:
    """Every tensor of an engine's file by name; on the CPU they are the file itself, mapped and read in.

    Raises: ToolkitError when the file is damaged.
    """
    stored = read_header(path)
    with path.open("rb") as file:
        content = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE, prot=mmap.PROT_READ)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch warns that a mapped file cannot be written to
        data = torch.frombuffer(content, dtype=torch.uint8)
    return {name: _view(data, tensor).to(device) for name, tensor in stored.items()}


def _view(data: Tensor, tensor: StoredTensor) -> Tensor:
    dtype = _DTYPES[tensor.dtype]
    size_bytes = torch.Size(tensor.shape).numel() * dtype.itemsize
    return data[tensor.offset : tensor.offset + size_bytes].view(dtype).view(tensor.shape)


class CheckpointReader:
    """Reads tensors of a checkpoint, its files open as long as the reader is."""

    def __init__(self, found: Mapping[str, StoredTensor]) -> None:
        self._found = found
        self._files: dict[Path, Any] = {}
        self._stack = ExitStack()

    def __enter__(self) -> CheckpointReader:
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def joined(self, sources: Iterable[Source], dtype: torch.dtype) -> Tensor:
        """The sources joined along their first dimension, in this dtype."""
        parts = [self._file(source.name).get_tensor(source.name).to(dtype) for source in sources]
        return parts[0].contiguous() if len(parts) == 1 else torch.cat(parts)

    def _file(self, name: str) -> Any:
        path = self._found[name].file
        if path not in self._files:
            self._files[path] = self._stack.enter_context(safe_open(path, framework="pt", device="cpu"))
        return self._files[path]


def write_tensors(
    path: Path, shapes: Mapping[str, tuple[tuple[int, ...], torch.dtype]], tensors: Iterable[Tensor]
) -> None:
    """Leaves a safetensors file with these tensors, which come one by one in the order of ``shapes``.

    Raises: OSError when the disk is full.
    """
    header: dict[str, Any] = {}
    offset = 0
    for name, (shape, dtype) in shapes.items():
        size_bytes = torch.Size(shape).numel() * dtype.itemsize
        header[name] = {
            "dtype": _DTYPE_NAMES[dtype],
            "shape": list(shape),
            "data_offsets": [offset, offset + size_bytes],
        }
        offset += size_bytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % _ALIGNMENT_BYTES)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors:
            file.write(tensor.contiguous().view(-1).view(torch.uint8).numpy().data)
        file.flush()
        os.fsync(file.fileno())
