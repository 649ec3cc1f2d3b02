"""Real wheels that don't fit the torch that runs the tests: which file, which direction."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from packaging.version import Version

from tests.environments.conftest import SITE
from toolkit.environments import binaries, reading
from toolkit.environments.binaries import Binary

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def download(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("wheels")


def unpack(download: Path, requirement: str) -> Path:
    """The folder of a wheel that pip downloaded, unpacked and not installed; its requirements are not followed."""
    if not (SITE / "torch").is_dir():
        pytest.skip("torch is not installed")
    place = download / requirement.replace("=", "-")
    argv = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--timeout=20"]
    try:
        done = subprocess.run(
            [*argv, "--retries=1", "-d", place, requirement], capture_output=True, text=True, check=False, timeout=240
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"downloading {requirement} takes too long here")
    if done.returncode:
        pytest.skip(f"{requirement} can't be downloaded here: {done.stderr.strip()[-300:]}")
    (wheel,) = place.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(place / "unpacked")
    return place / "unpacked"


def judge(folder: Path) -> dict[str, Binary]:
    environment = reading.read(Path(sys.executable), environ={"PYTHONPATH": str(folder)})
    judged = binaries.read(environment)
    assert judged.torch_mismatches == ()
    return {
        binary.extension.path.relative_to(folder).as_posix(): binary
        for binary in judged.files
        if folder in binary.extension.path.parents
    }


def torch_here() -> tuple[Version, str | None]:
    torch = reading.read(Path(sys.executable)).torch
    assert torch is not None
    return Version(torch.version or "0"), torch.cuda


def test_kernels_built_for_a_newer_torch_with_cuda_are_guilty(download: Path) -> None:
    version, cuda = torch_here()
    if cuda is not None or version >= Version("2.14"):
        pytest.skip(f"written for a torch before 2.14 without CUDA; this one is {version}")
    folder = unpack(download, "tokenspeed-trtllm-kernel==1.3.0.post20260924")
    binary = judge(folder)["trtllm_kernel/libtrtllm_kernel.so"]
    assert not binary.resolution.loads
    assert binary.cuda_major == 13
    assert [(o.source, o.torch) for o in binary.origins] == [("requires", "2.14.0")]
    found = {m.reason: m for m in binary.mismatches}["torch_without_cuda"]
    assert found.guilty == folder / "trtllm_kernel/libtrtllm_kernel.so"
    assert (found.owner, found.built_for, found.told_by) == ("torch", "newer", "metadata")
    assert found.asked == "libc10_cuda.so, libtorch_cuda.so"
    assert {str(target) for target in binary.gpu_code.targets} == {"sm_90a", "sm_100f", "sm_103f", "sm_107f"}
    assert binary.gpu_code.without_kernel("12.0") == binary.gpu_code.count() == 19
    assert binary.gpu_code.without_kernel("9.0") == 0


def test_a_torchvision_built_for_an_older_torch_is_guilty_by_its_symbols(download: Path) -> None:
    version, _ = torch_here()
    if version < Version("2.13"):
        pytest.skip(f"written for torch 2.13 and later; this one is {version}")
    folder = unpack(download, "torchvision==0.24.1")
    found = judge(folder)
    mismatches = {m.reason: m for m in found["torchvision/_C.so"].mismatches}
    release = mismatches["release"]
    assert release.guilty == folder / "torchvision/_C.so"
    assert (release.owner, release.built_for, release.told_by) == ("torch", "older", "symbols")
    assert any("SavedVariable::unpack" in (s.evidence.asked if s.evidence else "") for s in release.symbols)
    assert {str(t) for t in found["torchvision/_C.so"].gpu_code.targets} >= {"sm_80", "sm_90", "sm_120"}
    conflicts = reading.read(Path(sys.executable), environ={"PYTHONPATH": str(folder)}).conflicts
    assert [(c.required_by, c.found) for c in conflicts if c.name == "torch"] == [("torchvision", str(version))]


def test_a_torchvision_of_the_old_cxx11_abi_is_guilty_by_its_symbols(download: Path) -> None:
    version, _ = torch_here()
    if version < Version("2.13"):
        pytest.skip(f"written for torch 2.13 and later; this one is {version}")
    folder = unpack(download, "torchvision==0.20.1")
    for name in ("torchvision/_C.so", "torchvision/image.so"):
        first = judge(folder)[name].mismatches[0]
        assert (first.reason, first.guilty, first.asked, first.here) == ("cxx11_abi", folder / name, "old", "new")
        assert "std::string" in (first.symbols[0].evidence or pytest.fail("nothing weighed")).asked
    release = {m.reason: m for m in judge(folder)["torchvision/image.so"].mismatches}["release"]
    assert (release.built_for, release.told_by) == ("older", "symbols")
    assert "c10::basic_string_view<char>" in release.asked
    assert "std::basic_string_view<char" in (release.here or "")


@pytest.mark.parametrize("requirement", ["xxhash==3.8.1", "msgpack==1.1.2", "lxml==6.0.2", "orjson==3.11.4"])
def test_healthy_wheels_have_no_mismatch(download: Path, requirement: str) -> None:
    folder = unpack(download, requirement)
    environment = reading.read(Path(sys.executable), environ={"PYTHONPATH": str(folder)})
    judged = binaries.read(environment, everything=True)
    own = [binary for binary in judged.files if folder in binary.extension.path.parents]
    assert own
    assert [binary.mismatches for binary in own if binary.mismatches] == []
