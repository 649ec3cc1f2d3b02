"""Weights in safetensors files: mapped into memory for serving, written without a copy of their own."""

from __future__ import annotations

from pathlib import Path

from safetensors import safe_open
from torch import Tensor


def load_tensors(path: Path, device: str) -> dict[str, Tensor]:
    """Every tensor of a file by name; on the CPU they share the mapped file."""
    with safe_open(path, framework="pt", device=device) as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
