from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.environments import evidence
from toolkit.environments.evidence import Age, Owner

CHECK_OLD = "_ZN3c106detail14torchCheckFailEPKcS2_jRKSs"
CHECK_NEW = "_ZN3c106detail14torchCheckFailEPKcS2_jRKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"
ERROR_OLD = "_ZN3c105ErrorC2ENS_14SourceLocationESs"
ERROR_NEW = "_ZN3c105ErrorC2ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"


@pytest.mark.parametrize(
    ("symbol", "owner"),
    [
        (ERROR_OLD, "torch"),
        ("_ZN2at4_ops5empty4callEv", "torch"),
        ("_ZNK5torch8autograd4Node4nameEv", "torch"),
        ("_ZTIN3c105ErrorE", "torch"),
        ("_ZTVN5torch3jit6ModuleE", "torch"),
        ("_ZGVZN3c104testEvE1x", "torch"),
        ("aoti_torch_delete_tensor_object", "torch"),
        ("_ZN12tensorrt_llm7runtime11TllmRuntimeC1Ev", "tensorrt_llm"),
        ("_ZN8nvinfer111IGpuAllocator4freeEPv", "tensorrt"),
        ("createInferRuntime_INTERNAL", "tensorrt"),
        ("cudaLaunchKernelExC", "cuda"),
        ("__cudaRegisterFatBinary", "cuda"),
        ("cublasLtMatmul", "cuda"),
        ("ncclCommInitRankConfig", "cuda"),
        ("cuLaunchKernelEx", "cuda_driver"),
        ("PyLong_FromLong", "python"),
        ("_PyObject_New", "python"),
        ("MPI_Init_thread", "mpi"),
        ("_ZNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEE6resizeEmc", "libstdc++"),
        ("_ZSt20__throw_length_errorPKc", "libstdc++"),
        ("__cxa_throw", "libstdc++"),
        ("GOMP_parallel", "openmp"),
        ("_Z10flash_fwdRKN2at6TensorE", None),
        ("memcpy", None),
        ("", None),
    ],
)
def test_a_name_tells_whose_symbol_it_is(symbol: str, owner: Owner | None) -> None:
    assert evidence.owner_of(symbol) == owner


@pytest.mark.parametrize(
    ("version", "owner"),
    [("GLIBCXX_3.4.32", "libstdc++"), ("CXXABI_1.3.15", "libstdc++"), ("GLIBC_2.38", "libc"), ("OTHER_1", None)],
)
def test_a_version_tells_whose_symbol_it_is(version: str, owner: Owner | None) -> None:
    assert evidence.owner_of("memcpy", version) == owner


def test_a_function_that_is_there_under_the_other_abi_shows_the_direction() -> None:
    old = evidence.weigh(ERROR_OLD, None, [ERROR_NEW])
    new = evidence.weigh(ERROR_NEW, None, [ERROR_OLD])
    assert (old.kind, old.asked_abi, old.owner) == ("cxx11_abi", "old", "torch")
    assert (new.kind, new.asked_abi) == ("cxx11_abi", "new")
    assert old.asked == "c10::Error::Error(c10::SourceLocation, std::string)"


def test_a_function_with_other_parameters_shows_both_forms() -> None:
    proof = evidence.weigh("_ZN3c104cuda9SetDeviceEi", None, ["_ZN3c104cuda9SetDeviceEab"])
    assert (proof.kind, proof.asked) == ("signature", "c10::cuda::SetDevice(int)")
    assert proof.exported == ("c10::cuda::SetDevice(signed char, bool)",)


def test_a_name_nobody_has_is_absent_and_one_in_other_versions_is_told_apart() -> None:
    assert evidence.weigh("_ZN3c103newEv", None, []).kind == "absent"
    assert evidence.weigh("memcpy", "GLIBC_2.99", ["memcpy"]).kind == "version"
    assert evidence.weigh("memcpy", "GLIBC_2.99", ["memcpy"]).owner == "libc"


@pytest.mark.parametrize(
    ("asked", "here", "age"),
    [
        ("c10::cuda::SetDevice(int)", "c10::cuda::SetDevice(signed char)", "older"),
        ("c10::cuda::ExchangeDevice(signed char)", "c10::cuda::ExchangeDevice(int)", "newer"),
        ("at::f(c10::optional<long>)", "at::f(std::optional<long>, bool)", "older"),
        ("at::f(std::optional<long>)", "at::f(c10::optional<long>)", "newer"),
        ("c10::g(c10::basic_string_view<char>)", "c10::g(std::basic_string_view<char>)", "older"),
        ("c10::g(int)", "c10::g(signed char)", None),
        ("c10::cuda::SetDevice(signed char)", "c10::cuda::SetDevice(signed char, bool)", None),
    ],
)
def test_only_known_history_tells_older_from_newer(asked: str, here: str, age: Age | None) -> None:
    assert evidence.age(asked, [here]) == age


def test_the_same_qualified_name_is_found_with_any_parameters() -> None:
    plain, constant = evidence.same_name_prefixes("_ZN3c104cuda9SetDeviceEi")
    assert (plain, constant) == ("_ZN3c104cuda9SetDevice", "_ZNK3c104cuda9SetDevice")
    assert evidence.is_same_name(plain, "_ZN3c104cuda9SetDeviceEab")
    assert evidence.is_same_name(constant, "_ZNK3c104cuda9SetDeviceEv")
    assert not evidence.is_same_name(plain, "_ZN3c104cuda9SetDevice3fooEv")
    constructor = evidence.same_name_prefixes(ERROR_OLD)[0]
    assert evidence.is_same_name(constructor, ERROR_NEW.replace("C2", "C1"))
    assert evidence.same_name_prefixes("_ZNK2at6Tensor4sizeEl")[1] == "_ZN2at6Tensor4size"
    assert evidence.same_name_prefixes("memcpy") == ()
    assert evidence.same_name_prefixes("_Z3fooi") == ()


@given(st.text(alphabet="_ZNKSstaCDEI0123456789abcR", max_size=60))
def test_any_name_can_be_weighed(tail: str) -> None:
    symbol = "_Z" + tail
    evidence.owner_of(symbol)
    for prefix in evidence.same_name_prefixes(symbol):
        evidence.is_same_name(prefix, symbol)
    assert evidence.weigh(symbol, None, []).kind == "absent"
