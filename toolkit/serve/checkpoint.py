"""What a folder of safetensors files really holds, read from their headers alone (standard library only)."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from toolkit.errors import ToolkitError
from toolkit.names import nearest
from toolkit.serve.model_files import read_json

FLOAT_DTYPES = ("F32", "F16", "BF16", "F64")
_DTYPE_BITS = {
    "F64": 64, "F32": 32, "F16": 16, "BF16": 16, "F8_E5M2": 8, "F8_E4M3": 8, "I64": 64, "I32": 32, "I16": 16, "I8": 8,
    "U64": 64, "U32": 32, "U16": 16, "U8": 8, "BOOL": 8,
}  # fmt: skip
# The format's own bound on a header.
_MAX_HEADER_BYTES = 100_000_000
_REFETCH = "Fetch this file again: it was not downloaded whole."


@dataclass(frozen=True)
class StoredTensor:
    """Where a tensor is, ``offset`` bytes into its file, and what the header says of it."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int = 0


def read_checkpoint(model_dir: Path) -> dict[str, StoredTensor]:
    """Every tensor of a model folder by name, from ``model.safetensors`` or the shards that its index names.

    Raises: ToolkitError when there is no safetensors file, a shard is missing, or a file is shorter than it says.
    """
    index = model_dir / "model.safetensors.index.json"
    single = model_dir / "model.safetensors"
    if single.is_file():
        return read_header(single)
    if index.is_file():
        return _read_shards(index)
    others = sorted(path.name for path in model_dir.glob("*.bin")) + sorted(
        path.name for path in model_dir.glob("*.gguf")
    )
    found = f" It holds {', '.join(others)}." if others else ""
    raise ToolkitError(
        f"there is no model.safetensors in the model folder.{found}",
        str(model_dir),
        "Save the model as safetensors (save_pretrained does).",
        code="weights_missing",
    )


def _read_shards(index: Path) -> dict[str, StoredTensor]:
    places = read_json(index).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise ToolkitError("the index has no weight_map", str(index), _REFETCH, code="weights_damaged")
    names = sorted({str(name) for name in places.values()})
    missing = [name for name in names if not (index.parent / name).is_file()]
    if missing:
        raise ToolkitError(
            f"{len(missing)} of {len(names)} shards are missing: {', '.join(missing[:5])}",
            str(index),
            "Fetch the missing files.",
            code="weights_missing",
        )
    found: dict[str, StoredTensor] = {}
    for name in names:
        found.update(read_header(index.parent / name))
    return found


def read_header(path: Path) -> dict[str, StoredTensor]:
    """The tensors of one safetensors file.

    Raises: ToolkitError when the header is cut off or no header, or the file is shorter or longer than it says.
    """
    try:
        with path.open("rb") as file:
            header, start = _header(file, path)
        size_bytes = path.stat().st_size
    except OSError as error:
        raise ToolkitError(f"cannot be read: {error.strerror}", str(path), code="weights_unreadable") from error
    tensors: dict[str, StoredTensor] = {}
    end = 0
    for name, row in header.items():
        if name != "__metadata__":
            tensors[name], stop = _tensor(path, name, row, start)
            end = max(end, stop)
    if size_bytes != start + end:
        kind = "shorter" if size_bytes < start + end else "longer"
        what = f"the file is {kind} than its header says: {size_bytes} bytes, not {start + end}"
        raise ToolkitError(what, str(path), _REFETCH, code="weights_damaged")
    return tensors


def _header(file: BinaryIO, path: Path) -> tuple[dict[str, Any], int]:
    prefix = file.read(8)
    length = int.from_bytes(prefix, "little")
    if len(prefix) < 8 or not 2 <= length <= _MAX_HEADER_BYTES:
        raise ToolkitError("this is no safetensors file", str(path), _REFETCH, code="weights_damaged")
    text = file.read(length)
    if len(text) < length:
        what = f"the header is cut off: {len(text)} of {length} bytes"
        raise ToolkitError(what, str(path), _REFETCH, code="weights_damaged")
    try:
        header = json.loads(text)
    except ValueError:
        header = None
    if not isinstance(header, dict):
        raise ToolkitError("the header is no JSON object", str(path), _REFETCH, code="weights_damaged")
    return header, 8 + length


def _tensor(path: Path, name: str, row: Any, start: int) -> tuple[StoredTensor, int]:
    """The tensor of a header's row, and where its bytes end."""
    try:
        dtype, shape = str(row["dtype"]), tuple(int(size) for size in row["shape"])
        begin, end = (int(offset) for offset in row["data_offsets"])
    except (KeyError, TypeError, ValueError):
        raise ToolkitError(
            f"the header's row of '{name}' is broken", str(path), _REFETCH, code="weights_damaged"
        ) from None
    bits = _DTYPE_BITS.get(dtype)
    if bits is not None and (end - begin) * 8 != math.prod(shape) * bits:
        what = f"'{name}' takes {end - begin} bytes, which is no {dtype} tensor of shape {list(shape)}"
        raise ToolkitError(what, str(path), _REFETCH, code="weights_damaged")
    return StoredTensor(path, dtype, shape, start + begin), end


def check_tensors(found: Mapping[str, StoredTensor], expected: Mapping[str, Sequence[int]], model_dir: Path) -> None:
    """Raises ToolkitError for the first expected tensor that is missing, has another shape, or is not float."""
    missing = [name for name in expected if name not in found]
    if missing:
        near = nearest(missing[0], found)
        beside = f" The nearest name there is '{near}'." if near else ""
        raise ToolkitError(
            f"{len(missing)} of {len(expected)} tensors are missing, such as '{missing[0]}'.{beside}",
            str(model_dir),
            "Check that config.json and the weights belong together.",
            code="weights_missing",
        )
    for name, shape in expected.items():
        _check_tensor(name, found[name], tuple(shape))


def _check_tensor(name: str, tensor: StoredTensor, shape: tuple[int, ...]) -> None:
    if tensor.dtype not in FLOAT_DTYPES:
        raise ToolkitError(
            f"'{name}' has dtype {tensor.dtype}; builder torch reads {', '.join(FLOAT_DTYPES)}",
            str(tensor.file),
            "Use the model's unquantised weights.",
            code="weights_dtype",
        )
    if tensor.shape != shape:
        raise ToolkitError(
            f"'{name}' has shape {list(tensor.shape)}, config.json says {list(shape)}",
            str(tensor.file),
            "Check that config.json and the weights belong together.",
            code="weights_shape",
        )
