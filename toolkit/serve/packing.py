"""Weights in the order in which the processor's matrix kernels read them, so that no call has to reorder them."""

from __future__ import annotations

import platform
from collections.abc import Mapping

import torch
from torch import Tensor

# Read with oneDNN 3.x: the layout chosen for any number of rows suits every other one.
_ROWS = 16
_MACHINES = ("x86_64",)
HEAD, EMBEDDING = "model.lm_head.weight", "model.embed_tokens.weight"


def can_pack(device: str, dtype: str) -> bool:
    """Whether oneDNN multiplies by packed weights here."""
    if device != "cpu" or platform.machine() not in _MACHINES or not torch._C._has_mkldnn:
        return False
    return dtype == "float32" or (dtype == "bfloat16" and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported()))


def pack(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same weights, matrices of products packed and everything in memory of its own; a shared head gets its own."""
    whole = {HEAD: weights[EMBEDDING], **weights}
    return {name: packed_matrix(tensor) if is_product(name) else tensor.clone() for name, tensor in whole.items()}


def is_product(name: str) -> bool:
    """True for the matrix of a product (an embedding is a table)."""
    return name == HEAD or name.endswith("_proj.weight")


def packed_matrix(weight: Tensor) -> Tensor:
    """The same matrix [out, in], readable by oneDNN alone."""
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, _ROWS)
    return packed
