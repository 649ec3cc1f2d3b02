from __future__ import annotations

import shutil
import struct
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.environments.conftest import Compiler
from toolkit.environments import fatbin
from toolkit.environments.fatbin import GpuCode, Target

PTX, CUBIN = 1, 2
SPECIFIC, FAMILY, COMPRESSED = 1 << 20, 1 << 21, 0x8000


def entry(kind: int, arch: int, flags: int = 0x11, payload: int = 24, header: int = 64) -> bytes:
    head = struct.pack("<HHIQIIHHIIIQ", kind, 0x101, header, payload, 0, 64, 8, 1, arch, 0, 0, flags)
    return head.ljust(header, b"\0") + bytes(payload)


def container(*entries: bytes) -> bytes:
    body = b"".join(entries)
    return struct.pack("<IHHQ", fatbin.MAGIC, 1, 16, len(body)) + body


def library(compile_library: Compiler, content: bytes, section: str = ".nv_fatbin") -> Path:
    """A library with these bytes in a section, as nvcc leaves its GPU code."""
    rows = ",".join(map(str, content)) or "0"
    source = f'__attribute__((section("{section}"), used)) static const unsigned char code[] = {{{rows}}};'
    return compile_library("libgpu.so", source)


def names(code: GpuCode) -> list[str]:
    return [str(target) for target in code.targets]


def test_a_file_says_which_gpus_its_kernels_are_for(compile_library: Compiler) -> None:
    content = container(entry(CUBIN, 80), entry(CUBIN, 90, SPECIFIC | COMPRESSED), entry(PTX, 90)) + container(
        entry(CUBIN, 100, FAMILY, header=96), entry(CUBIN, 80)
    )
    code = fatbin.read(library(compile_library, content))
    assert code.error is None
    assert code.count() == 2
    assert names(code) == ["sm_80", "sm_90a", "sm_100f", "compute_90"]


def test_padding_between_containers_and_unknown_entries_are_passed_over(compile_library: Compiler) -> None:
    content = container(entry(CUBIN, 80), entry(99, 70)) + bytes(40) + container(entry(CUBIN, 86))
    assert names(fatbin.read(library(compile_library, content))) == ["sm_80", "sm_86"]


def test_code_that_is_linked_at_run_time_counts_too(compile_library: Compiler) -> None:
    assert names(fatbin.read(library(compile_library, container(entry(CUBIN, 75)), "__nv_relfatbin"))) == ["sm_75"]


def test_a_library_without_gpu_code_has_none(compile_library: Compiler, tmp_path: Path) -> None:
    assert fatbin.read(compile_library("libcpu.so", "int f() { return 1; }")) == GpuCode()
    assert fatbin.read(tmp_path / "absent.so") == GpuCode()


def test_a_damaged_header_is_an_error_beside_what_was_read(compile_library: Compiler) -> None:
    content = container(entry(CUBIN, 80)) + container(struct.pack("<HHIQ", CUBIN, 1, 0, 0).ljust(64, b"\0"))
    code = fatbin.read(library(compile_library, content))
    assert names(code) == ["sm_80"]
    assert "header of 0 bytes" in (code.error or "")


@pytest.mark.parametrize(
    ("target", "runs", "does_not"),
    [
        (Target("cubin", 80), (80, 86, 89), (75, 90, 120)),
        (Target("cubin", 86), (86, 89), (80, 90)),
        (Target("cubin", 90, "a"), (90,), (89, 100)),
        (Target("cubin", 100, "f"), (100, 103), (90, 110, 120)),
        (Target("cubin", 100, "a"), (100,), (103, 120)),
        (Target("ptx", 80), (80, 90, 120), (75,)),
        (Target("ptx", 90, "a"), (90,), (100, 120)),
    ],
)
def test_code_runs_where_nvidia_says_it_does(target: Target, runs: tuple[int, ...], does_not: tuple[int, ...]) -> None:
    assert all(map(target.runs_on, runs))
    assert not any(map(target.runs_on, does_not))


def code_for(*containers: Iterable[Target]) -> GpuCode:
    return GpuCode(tuple((frozenset(targets), 1) for targets in containers))


def test_containers_that_have_nothing_for_a_gpu_are_counted() -> None:
    code = code_for([Target("cubin", 80), Target("cubin", 90)], [Target("cubin", 90, "a")], [Target("ptx", 80)])
    assert code.without_kernel("12.0") == 2
    assert code.without_kernel("sm_90") == 0
    assert code.without_kernel("8.6") == 1
    assert code.without_kernel("7.5") == 3


@pytest.mark.parametrize("text", ["", "9", "nine", "9.0.0", "sm_", "sm_9x"])
def test_what_is_no_compute_capability_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="compute capability"):
        fatbin.capability_number(text)


@pytest.mark.parametrize(("text", "number"), [("9.0", 90), ("12.0", 120), ("sm_100", 100), ("sm_90a", 90), ("7.5", 75)])
def test_compute_capabilities_are_read_in_every_spelling(text: str, number: int) -> None:
    assert fatbin.capability_number(text) == number


@given(st.integers(50, 130), st.sampled_from(["", "a", "f"]), st.sampled_from(["ptx", "cubin"]))
def test_code_always_runs_on_the_gpu_it_was_compiled_for(arch: int, suffix: str, kind: str) -> None:
    assert Target(kind, arch, suffix).runs_on(arch)  # type: ignore[arg-type]


@pytest.mark.slow
def test_what_nvcc_writes_is_what_was_asked_of_it(tmp_path: Path) -> None:
    if shutil.which("nvcc") is None:
        pytest.skip("nvcc is not installed")
    source, target = tmp_path / "k.cu", tmp_path / "k.so"
    source.write_text("__global__ void k(float* x) { x[0] = 1; }\nvoid go(float* x) { k<<<1, 1>>>(x); }\n")
    wanted = ["sm_80", "sm_90a", "sm_120", "compute_120"]
    code = ["80,code=sm_80", "90a,code=sm_90a", "120,code=[sm_120,compute_120]"]
    flags = [word for one in code for word in ("-gencode", f"arch=compute_{one}")]
    done = subprocess.run(
        ["nvcc", "-shared", "-Xcompiler", "-fPIC", *flags, "-o", target, source],
        capture_output=True,
        check=False,
        timeout=300,
    )
    if done.returncode:
        pytest.skip(f"this nvcc does not know these targets: {done.stderr[-200:]!r}")
    assert names(fatbin.read(target)) == wanted
