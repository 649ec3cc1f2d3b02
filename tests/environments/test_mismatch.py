from __future__ import annotations

from pathlib import Path

import pytest

from toolkit.environments import evidence, mismatch
from toolkit.environments.evidence import Owner
from toolkit.environments.linking import Library, MissingVersion, Resolution, Unresolved
from toolkit.environments.model import TorchFacts
from toolkit.environments.origins import Origin

FILE = Path("/env/flash_attn_2_cuda.so")
ERROR_OLD = "_ZN3c105ErrorC2ENS_14SourceLocationESs"
ERROR_NEW = "_ZN3c105ErrorC2ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"


def torch(abi: str = "new", cuda: str | None = "12.8", linked: int | None = 12, version: str = "2.9.0") -> TorchFacts:
    return TorchFacts(Path("/env/torch"), version, cuda, cxx11_abi=abi, cuda_linked=linked)  # type: ignore[arg-type]


def lacking(symbol: str, *others: str, version: str | None = None) -> Unresolved:
    return Unresolved(FILE, symbol, version, evidence.weigh(symbol, version, others))


def test_a_file_that_loads_has_no_mismatch() -> None:
    assert (
        mismatch.find(Resolution(FILE, (Library("libc.so.6", FILE, Path("/lib/libc.so.6"), "cache"),)), torch()) == ()
    )


@pytest.mark.parametrize(("here", "symbol", "other"), [("new", ERROR_OLD, ERROR_NEW), ("old", ERROR_NEW, ERROR_OLD)])
def test_the_direction_of_an_abi_mismatch_is_told_by_symbols(here: str, symbol: str, other: str) -> None:
    (found,) = mismatch.find(Resolution(FILE, unresolved=(lacking(symbol, other),)), torch(here))
    asked = "old" if here == "new" else "new"
    assert (found.reason, found.owner, found.asked, found.here) == ("cxx11_abi", "torch", asked, here)
    assert (found.guilty, found.told_by) == (FILE, "symbols")


def test_an_absent_function_with_a_string_of_the_other_abi_is_an_abi_mismatch_too() -> None:
    (found,) = mismatch.find(Resolution(FILE, unresolved=(lacking(ERROR_OLD),)), torch("new"))
    assert (found.reason, found.asked) == ("cxx11_abi", "old")


def test_another_signature_tells_the_age_and_both_forms() -> None:
    symbol = lacking("_ZN3c104cuda9SetDeviceEi", "_ZN3c104cuda9SetDeviceEa")
    (found,) = mismatch.find(Resolution(FILE, unresolved=(symbol,)), torch())
    assert (found.reason, found.built_for, found.told_by) == ("release", "older", "symbols")
    assert (found.asked, found.here) == ("c10::cuda::SetDevice(int)", "c10::cuda::SetDevice(signed char)")


def test_where_symbols_do_not_tell_the_age_metadata_may() -> None:
    resolution = Resolution(FILE, unresolved=(lacking("_ZN3c103newEv"),))
    (pinned,) = mismatch.find(resolution, torch(), [Origin("requires", "torch==2.10.0", torch="2.10.0")])
    assert (pinned.built_for, pinned.told_by) == ("newer", "metadata")
    (silent,) = mismatch.find(resolution, torch())
    assert (silent.built_for, silent.told_by) == (None, None)
    both = [Origin("requires", "", torch="2.10.0"), Origin("url", "", torch="2.8")]
    assert mismatch.find(resolution, torch(), both)[0].built_for is None


@pytest.mark.parametrize(
    ("symbol", "owner"),
    [
        ("_ZN12tensorrt_llm7runtime3fooEv", "tensorrt_llm"),
        ("_ZN8nvinfer13barEv", "tensorrt"),
        ("cublasLtNew", "cuda"),
        ("MPI_New", "mpi"),
    ],
)
def test_missing_symbols_are_grouped_by_whose_they_are(symbol: str, owner: Owner) -> None:
    (found,) = mismatch.find(Resolution(FILE, unresolved=(lacking(symbol), lacking(symbol))), torch())
    assert (found.reason, found.owner, len(found.symbols)) == ("release", owner, 2)


def test_a_file_built_for_cuda_on_a_torch_without_it_is_told_once() -> None:
    lost = (Library("libc10_cuda.so", FILE), Library("libtorch_cuda.so", FILE))
    (found,) = mismatch.find(Resolution(FILE, lost), torch(cuda=None, linked=None))
    assert (found.reason, found.asked, found.here) == (
        "torch_without_cuda",
        "libc10_cuda.so, libtorch_cuda.so",
        "2.9.0",
    )


@pytest.mark.parametrize(("asked", "linked", "age"), [(12, 13, "older"), (13, 12, "newer")])
def test_another_major_version_of_cuda_is_told_even_where_a_library_of_it_is_found(
    asked: int, linked: int, age: str
) -> None:
    name = f"libcudart.so.{asked}"
    found = mismatch.find(
        Resolution(FILE, (Library(name, FILE, Path("/usr/lib") / name, "cache"),)), torch(linked=linked)
    )
    assert [(m.reason, m.asked, m.here, m.built_for) for m in found] == [("cuda_major", str(asked), str(linked), age)]
    assert mismatch.find(Resolution(FILE, (Library("libcudart.so.12", FILE, FILE),)), torch(linked=12)) == ()


def test_the_drivers_library_is_told_apart_from_others() -> None:
    lost = (Library("libcuda.so.1", FILE), Library("libnvinfer.so.10", FILE), Library("libodd.so.3", FILE))
    found = mismatch.find(Resolution(FILE, lost), torch())
    assert [(m.reason, m.owner, m.asked) for m in found] == [
        ("driver_missing", "cuda_driver", "libcuda.so.1"),
        ("library_missing", "tensorrt", "libnvinfer.so.10"),
        ("library_missing", None, "libodd.so.3"),
    ]


def test_a_system_library_that_is_too_old_is_told_with_the_version() -> None:
    missing = MissingVersion(FILE, Path("/lib/libstdc++.so.6"), "GLIBCXX_3.4.32")
    (found,) = mismatch.find(Resolution(FILE, missing_versions=(missing,)), None)
    assert (found.reason, found.owner, found.asked) == ("library_too_old", "libstdc++", "GLIBCXX_3.4.32")


def test_an_unreadable_file_is_told() -> None:
    (found,) = mismatch.find(Resolution(FILE, errors=((FILE, "not an ELF file"),)), None)
    assert (found.reason, found.asked) == ("unreadable", "not an ELF file")


@pytest.mark.parametrize(
    ("name", "owner"),
    [
        ("libc10_cuda.so", "torch"),
        ("libtorch_cpu.so", "torch"),
        ("libtensorrt_llm.so", "tensorrt_llm"),
        ("libnvinfer_plugin_tensorrt_llm.so", "tensorrt_llm"),
        ("libnvinfer.so.10", "tensorrt"),
        ("libcuda.so.1", "cuda_driver"),
        ("libcudart.so.12", "cuda"),
        ("libnccl.so.2", "cuda"),
        ("libmpi.so.40", "mpi"),
        ("libpython3.11.so.1.0", "python"),
        ("libz.so.1", None),
    ],
)
def test_the_name_of_a_library_tells_whose_it_is(name: str, owner: Owner | None) -> None:
    assert mismatch.library_owner(name) == owner


def test_beside_a_library_that_cannot_be_read_no_symbol_is_called_missing() -> None:
    resolution = Resolution(FILE, unresolved=(lacking(ERROR_OLD),), errors=((FILE.with_name("libc10.so"), "ended"),))
    (found,) = mismatch.find(resolution, torch("new"))
    assert (found.reason, found.guilty.name) == ("unreadable", "libc10.so")
