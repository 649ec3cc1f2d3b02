from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.environments.conftest import SITE, Compiler, Torch, install, make_venv
from toolkit.environments import binaries, loader, reading
from toolkit.environments.binaries import Binaries
from toolkit.environments.linking import Library
from toolkit.environments.mismatch import Mismatch


def judge(venv: Path, **environ: str) -> Binaries:
    return binaries.read(reading.read(venv, environ=environ))


def only(judged: Binaries) -> Mismatch:
    (binary,) = judged.files
    (found,) = binary.mismatches
    return found


def loaded_by_torch(judged: Binaries, name: str) -> Library:
    return next(library for each in judged.torch for library in each.libraries if library.name == name)


def really(venv: Path, file: Path, **environ: str) -> str | None:
    """What this machine's loader says when the made-up torch and then the file are loaded."""
    code = """
import ctypes, glob, json, sys
try:
    for pattern in sys.argv[1:-1]:
        for path in glob.glob(pattern):
            ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL if "global_deps" in path else ctypes.RTLD_LOCAL)
    ctypes.CDLL(sys.argv[-1])
    print(json.dumps(None))
except OSError as error:
    print(json.dumps(str(error)))
"""
    torch = next((venv / "lib").glob("python*/site-packages/torch"))
    first = [str(torch / "lib/libtorch_global_deps.so"), str(torch / "_C.*.so")]
    python = Path(os.path.realpath(venv / "bin/python"))
    argv = [python, "-I", "-S", "-c", code, *first, str(file)]
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, check=True, timeout=60)
    answer = json.loads(done.stdout)
    return str(answer) if answer is not None else None


def test_the_tests_own_environment_has_no_mismatch_in_any_package() -> None:
    judged = binaries.read(reading.read(Path(sys.executable)), everything=True)
    assert [binary.mismatches for binary in judged.files if binary.mismatches] == []
    assert judged.torch_mismatches == ()
    assert all(resolution.loads for resolution in judged.torch)
    packages = {binary.extension.path.relative_to(SITE).parts[0] for binary in judged.files}
    assert len(packages) >= 15, sorted(packages)


def test_an_extension_of_the_same_torch_fits(compile_library: Compiler, venv: Path, site: Path) -> None:
    file = Torch(compile_library, site).make().extension(site)
    judged = judge(venv)
    assert [(b.extension.path, b.mismatches, b.resolution.loads) for b in judged.files] == [(file, (), True)]
    assert {(lib.name, lib.via) for lib in judged.files[0].resolution.libraries} >= {("libc10.so", "loaded")}
    assert really(venv, file) is None


@pytest.mark.parametrize(("built", "here"), [(0, 1), (1, 0)])
def test_an_extension_of_the_other_cxx11_abi_is_guilty(
    compile_library: Compiler, venv: Path, site: Path, tmp_path: Path, built: int, here: int
) -> None:
    Torch(compile_library, site, abi=here).make()
    other = Torch(compile_library, tmp_path / "other", abi=built).make()
    file = other.extension(site)
    names = {0: "old", 1: "new"}
    found = only(judge(venv))
    assert (found.reason, found.guilty, found.owner) == ("cxx11_abi", file, "torch")
    assert (found.asked, found.here) == (names[built], names[here])
    assert {s.evidence.asked for s in found.symbols if s.evidence} >= {
        "c10::Error::Error(c10::SourceLocation, std::string)"
    }
    assert "undefined symbol: _ZN3c10" in str(really(venv, file))


@pytest.mark.parametrize(("built", "here", "age"), [("int", "signed char", "older"), ("signed char", "int", "newer")])
def test_an_extension_of_an_older_or_newer_torch_is_guilty(
    compile_library: Compiler, venv: Path, site: Path, tmp_path: Path, built: str, here: str, age: str
) -> None:
    Torch(compile_library, site, cuda=12, device=here).make()
    file = Torch(compile_library, tmp_path / "other", cuda=12, device=built).make().extension(site)
    found = only(judge(venv))
    assert (found.reason, found.guilty, found.built_for, found.told_by) == ("release", file, age, "symbols")
    assert (found.asked, found.here) == (f"c10::cuda::SetDevice({built})", f"c10::cuda::SetDevice({here})")
    assert "SetDevice" in str(really(venv, file))


def test_an_extension_for_cuda_needs_a_torch_with_cuda(
    compile_library: Compiler, venv: Path, site: Path, tmp_path: Path
) -> None:
    Torch(compile_library, site, version="2.9.0+cpu").make()
    file = Torch(compile_library, tmp_path / "other", cuda=77).make().extension(site, requires=["torch==2.10.0"])
    reasons = {m.reason: m for m in judge(venv).files[0].mismatches}
    assert set(reasons) == {"torch_without_cuda", "library_missing"}
    assert (reasons["torch_without_cuda"].built_for, reasons["torch_without_cuda"].told_by) == ("newer", "metadata")
    assert reasons["library_missing"].asked == "libcudart.so.77"
    assert really(venv, file) is not None


def test_an_extension_for_another_major_version_of_cuda_is_guilty(
    compile_library: Compiler, venv: Path, site: Path, tmp_path: Path
) -> None:
    Torch(compile_library, site, cuda=77).make()
    file = Torch(compile_library, tmp_path / "other", cuda=78).make().extension(site)
    found = {m.reason: m for m in judge(venv).files[0].mismatches}
    assert (found["cuda_major"].asked, found["cuda_major"].here, found["cuda_major"].built_for) == ("78", "77", "newer")
    assert found["library_missing"].asked == "libcudart.so.78"
    assert found["library_missing"].guilty == file
    assert "libcudart.so.78" in str(really(venv, file))


def test_a_system_library_in_ld_library_path_shadows_the_wheels(
    compile_library: Compiler, venv: Path, site: Path, tmp_path: Path
) -> None:
    torch = Torch(compile_library, site, cuda=77).make()
    wheel = torch.site / "nvidia/cuda_runtime/lib/libcudart.so.77"
    system = compile_library("libcudart.so.77", 'extern "C" int cudaMalloc() { return 1; }', folder=tmp_path / "system")
    clean = judge(venv)
    library = loaded_by_torch(clean, wheel.name)
    assert (library.path, library.via) == (wheel, "runpath")
    shadowed = judge(venv, LD_LIBRARY_PATH=str(system.parent))
    (first,) = shadowed.torch[0].shadowed
    assert (first.path, first.via, first.passed_over) == (system, "ld_library_path", wheel)
    assert loaded_by_torch(shadowed, wheel.name).path == system


def test_the_wheels_of_cuda_are_loaded_where_the_loader_alone_finds_none(
    compile_library: Compiler, venv: Path, site: Path
) -> None:
    torch = Torch(compile_library, site, cuda=77).make()
    flags = ["-Wl,-rpath,$ORIGIN"]
    for name in ("libtorch_global_deps.so", "libc10_cuda.so", "libtorch_cuda.so"):
        needs = [torch.runtime(), *([torch.lib / "libc10.so"] if "global" not in name else [])]
        source = (
            torch.header + f"int c10::cuda::SetDevice({torch.device}) {{ return 1; }}"
            if name == "libc10_cuda.so"
            else ""
        )
        compile_library(name, source, needs=needs, folder=torch.lib, flags=flags)
    judged = judge(venv)
    assert all(resolution.loads for resolution in judged.torch)
    assert judged.torch[0].libraries[0].via == "loaded"


def test_a_torch_that_does_not_load_itself_is_told(compile_library: Compiler, venv: Path, site: Path) -> None:
    torch = Torch(compile_library, site).make()
    (torch.lib / "libtorch_cpu.so").unlink()
    judged = judge(venv)
    assert [(m.reason, m.asked) for m in judged.torch_mismatches] == [("library_missing", "libtorch_cpu.so")]


def test_mixed_releases_of_tensorrt_llm_are_told_by_its_namespace(
    compile_library: Compiler, venv: Path, site: Path
) -> None:
    folder = site / "tensorrt_llm"
    old = "namespace tensorrt_llm { namespace runtime { int start(int) { return 1; } } }"
    use = "namespace tensorrt_llm { namespace runtime { int start(int, bool); } } int go() { return %s; }"
    library = compile_library("libtensorrt_llm.so", old, folder=folder / "libs")
    source = use % "tensorrt_llm::runtime::start(1, true)"
    compile_library("bindings.so", source, needs=[library], folder=folder, flags=["-Wl,-rpath,$ORIGIN/libs"], soname="")
    found = {b.extension.path.name: b.mismatches for b in judge(venv).files}
    assert found["libtensorrt_llm.so"] == ()
    (guilty,) = found["bindings.so"]
    assert (guilty.reason, guilty.owner) == ("release", "tensorrt_llm")
    assert (guilty.asked, guilty.here) == (
        "tensorrt_llm::runtime::start(int, bool)",
        "tensorrt_llm::runtime::start(int)",
    )


def test_tensorrt_is_loaded_before_what_needs_it(compile_library: Compiler, venv: Path, site: Path) -> None:
    nvinfer = compile_library(
        "libnvinfer.so.10", "namespace nvinfer1 { int build() { return 1; } }", folder=site / "tensorrt_libs"
    )
    source = "namespace nvinfer1 { int build(); } int go() { return nvinfer1::build(); }"
    compile_library("bindings.so", source, needs=[nvinfer], folder=site / "tensorrt_llm", soname="")
    compile_library("lone.so", source, needs=[nvinfer], folder=site / "vllm", soname="")
    found = {b.extension.path.name: [m.asked for m in b.mismatches] for b in judge(venv).files}
    assert found["bindings.so"] == []
    assert found["lone.so"] == ["libnvinfer.so.10"]


def test_files_that_a_package_loads_itself_are_taken_to_be_there(
    compile_library: Compiler, venv: Path, site: Path
) -> None:
    inner = compile_library("libtriton.so", 'extern "C" int inner() { return 1; }', folder=site / "triton/_C")
    source = 'extern "C" int inner(); int use() { return inner(); }'
    file = compile_library("plugin.so", source, needs=[inner], folder=site / "triton/plugins")
    stranger = compile_library("stranger.so", source, needs=[inner], folder=site / "vllm")
    found = {binary.extension.path: binary for binary in judge(venv).files}
    assert (found[file].mismatches, found[file].after) == ((), (inner,))
    assert [m.asked for m in found[stranger].mismatches] == ["libtriton.so"]
    assert found[stranger].after == ()


def test_a_libstdcxx_that_is_too_old_is_told(compile_library: Compiler, venv: Path, site: Path, tmp_path: Path) -> None:
    file = compile_library(
        "new.so", "#include <string>\nstd::string f(int n) { return std::to_string(n); }", folder=site / "vllm"
    )
    script = tmp_path / "old.map"
    script.write_text("GLIBCXX_3.4 { };")
    place = tmp_path / "old"
    flags = [f"-Wl,--version-script={script}", "-nodefaultlibs"]
    compile_library("libstdc++.so.6", 'extern "C" int nothing() { return 0; }', folder=place, flags=flags)
    missing = [m for m in judge(venv, LD_LIBRARY_PATH=str(place)).files[0].mismatches if m.reason == "library_too_old"]
    assert missing
    assert {m.guilty for m in missing} == {file}
    assert {m.owner for m in missing} == {"libstdc++"}
    assert all(m.asked.startswith(("GLIBCXX_", "CXXABI_")) for m in missing)
    assert judge(venv).files[0].mismatches == ()


DRIVER = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27 07:18:12 UTC 2025\n"
OPEN_DRIVER = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.124.06  Release Build\n"


@pytest.mark.parametrize(
    ("text", "version"), [(DRIVER, "580.65.06"), (OPEN_DRIVER, "570.124.06"), ("", None), ("x", None)]
)
def test_the_drivers_library_is_found_with_the_kernels_version(
    compile_library: Compiler, venv: Path, tmp_path: Path, text: str, version: str | None
) -> None:
    place = tmp_path / "cuda/compat"
    real = compile_library("libcuda.so.550.54.15", soname="libcuda.so.1", folder=place)
    (place / "libcuda.so.1").symlink_to(real.name)
    environment = reading.read(venv, ld_library_path=str(place))
    found = binaries.read(environment, driver_text=text).driver
    assert (found.found.path, found.found.via) == (place / "libcuda.so.1", "ld_library_path")
    assert (found.version, found.compat, found.driver) == ("550.54.15", True, version)


def test_gpu_code_and_sizes_come_with_each_file(compile_library: Compiler, venv: Path, site: Path) -> None:
    file = compile_library("_C.so", "int f() { return 1; }", folder=site / "vllm")
    install(site, "vllm", "0.21.0+cu130", record=[file])
    (binary,) = judge(venv).files
    assert binary.gpu_code.count() == 0
    assert binary.cuda_major is None
    assert [(o.source, o.cuda) for o in binary.origins] == [("version", 13)]
    assert not binary.extension.changed


def test_a_folder_without_an_interpreter_is_judged_without_pythons_own_symbols(
    compile_library: Compiler, tmp_path: Path
) -> None:
    source = """
    extern "C" { void* PyLong_FromLong(long); int lost(); }
    void* f() { return PyLong_FromLong(lost()); }
    """
    compile_library("_C.so", source, folder=tmp_path / "target/vllm")
    (binary,) = binaries.read(reading.read(tmp_path / "target"), machine=loader.read()).files
    assert [u.symbol for u in binary.resolution.unresolved] == ["lost"]


def test_a_venv_whose_base_is_gone_is_still_judged(compile_library: Compiler, tmp_path: Path) -> None:
    site = make_venv(tmp_path / "venv", base=tmp_path / "gone/bin/python3")
    Torch(compile_library, site).make().extension(site)
    judged = judge(tmp_path / "venv")
    assert judged.interpreter is None or not judged.interpreter.loads
    assert len(judged.files) == 1
