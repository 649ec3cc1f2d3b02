from __future__ import annotations

import pytest
import torch

from toolkit.serve.decoder import PackedLinear
from toolkit.serve.packing import EMBEDDING, HEAD, can_pack, is_product, pack

needs_onednn = pytest.mark.skipif(not can_pack("cpu", "float32"), reason="no oneDNN here")


def test_matrices_of_products_are_packed_and_tables_are_not() -> None:
    assert is_product("model.layers.0.self_attn.qkv_proj.weight")
    assert is_product(HEAD)
    assert not is_product(EMBEDDING)
    assert not is_product("model.layers.0.self_attn.qkv_proj.bias")
    assert not is_product("model.norm.weight")


def test_a_gpu_packs_nothing() -> None:
    assert not can_pack("cuda", "bfloat16")
    assert not can_pack("cpu", "float16")


@needs_onednn
@pytest.mark.parametrize("rows", [1, 3, 17])
def test_a_packed_product_is_the_product(rows: int) -> None:
    linear = PackedLinear(64, 96)
    x = torch.randn(rows, 64)
    expected = torch.nn.functional.linear(x, linear.weight, linear.bias)
    weights = pack({"a_proj.weight": linear.weight.detach(), EMBEDDING: torch.ones(4, 64)})
    linear.weight = torch.nn.Parameter(weights["a_proj.weight"], requires_grad=False)
    with torch.no_grad():
        assert torch.allclose(linear(x), expected, atol=1e-5)


@needs_onednn
def test_a_shared_head_gets_a_matrix_of_its_own() -> None:
    weights = pack({EMBEDDING: torch.ones(4, 64)})
    assert weights[HEAD].is_mkldnn
    assert not weights[EMBEDDING].is_mkldnn


@needs_onednn
def test_a_head_of_its_own_is_kept() -> None:
    own = torch.full((4, 64), 2.0)
    packed = pack({EMBEDDING: torch.ones(4, 64), HEAD: own})
    assert torch.equal(packed[HEAD].to_dense(), own)
