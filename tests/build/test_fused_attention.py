from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.build.packages import FUSED_CALL, UNFUSED_CALL, archive, library
from toolkit.build.fused_attention import fused_names, read_package


def test_a_package_without_fused_attention_has_no_evidence(tmp_path: Path) -> None:
    plain = library(tmp_path, [UNFUSED_CALL], ["cpp_fused_softmax_0", "post_attention_layernorm"])
    source = b"auto m_layers_2_post_attention_layernorm_weight = 1; // attention, softmax"
    reading = read_package(archive({"w.so": plain, "w.cpp": source}))
    assert not reading.fused
    assert reading.members == 2
    assert reading.symbols > 2


@pytest.mark.parametrize(
    "name",
    [
        FUSED_CALL,
        "aoti_torch_cuda__scaled_dot_product_flash_attention",
        "aoti_torch_cuda__scaled_dot_product_efficient_attention",
        "aoti_torch_cuda__scaled_dot_product_cudnn_attention",
        "aoti_torch_cuda__scaled_dot_product_fused_attention_overrideable",
        "aoti_torch_cuda__flash_attention_forward",
        "aoti_torch_cuda__efficient_attention_forward",
    ],
)
def test_a_call_of_a_fused_operator_is_found_among_the_undefined_symbols(name: str, tmp_path: Path) -> None:
    reading = read_package(archive({"w.so": library(tmp_path, [UNFUSED_CALL, name])}))
    assert reading.operators == (name,)
    assert {(e.kind, e.name) for e in reading.evidence} == {("symbol", name)}


def test_an_operator_called_through_the_proxy_executor_is_found_in_its_nodes(tmp_path: Path) -> None:
    nodes = b'{"nodes": [{"target": "torch.ops.aten._scaled_dot_product_flash_attention.default"}]}'
    reading = read_package(archive({"w.so": library(tmp_path, [UNFUSED_CALL]), "extern_kernel_nodes.json": nodes}))
    assert [(e.kind, e.name) for e in reading.evidence] == [("text", "_scaled_dot_product_flash_attention")]


def test_a_kernel_made_of_flex_attention_is_found_in_a_gpu_binary(tmp_path: Path) -> None:
    kernel = library(tmp_path, [], ["triton_tem_fused_flex_attention_0"])
    plain = library(tmp_path, [UNFUSED_CALL])
    reading = read_package(archive({"w.so": plain, "kernel.cubin": kernel}))
    assert [(e.member.rsplit("/", 1)[-1], e.name) for e in reading.evidence] == [
        ("kernel.cubin", "triton_tem_fused_flex_attention_0")
    ]


def test_a_gpu_binary_that_is_no_elf_is_read_as_text(tmp_path: Path) -> None:
    plain = library(tmp_path, [UNFUSED_CALL])
    reading = read_package(archive({"w.so": plain, "k.hsaco": b"\x00\x01 _flash_attn_fwd_kernel \xff"}))
    assert [e.name for e in reading.evidence] == ["_flash_attn_fwd_kernel"]


@pytest.mark.parametrize("content", [b"", b"no archive", archive({}), archive({"w.cpp": b"int x;"})])
def test_what_holds_no_library_proves_nothing(content: bytes) -> None:
    with pytest.raises(ValueError, match="package"):
        read_package(content)


def test_a_library_that_is_no_elf_file_proves_nothing() -> None:
    with pytest.raises(ValueError, match="no compiled library"):
        read_package(archive({"w.so": b"text"}))


@given(before=st.text(alphabet="ab_(;", max_size=5), after=st.text(alphabet="ab_(;", max_size=5))
def test_a_name_is_found_wherever_it_stands(before: str, after: str) -> None:
    found = list(fused_names([f"{before}_scaled_dot_product_efficient_attention{after}"]))
    assert len(found) == 1
    assert "_scaled_dot_product_efficient_attention" in found[0]


@pytest.mark.parametrize("text", ["post_attention_layernorm", "self_attn.qkv_proj", "softmax", "attention_bias"])
def test_names_of_plain_parts_are_no_evidence(text: str) -> None:
    assert list(fused_names([text])) == []
