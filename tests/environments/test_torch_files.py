from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.environments.conftest import SITE, Compiler, Torch
from toolkit.environments import torch_files
from toolkit.environments.loader import Files


@pytest.mark.slow
def test_the_installed_torch_is_what_it_says_of_itself() -> None:
    if not (SITE / "torch").is_dir():
        pytest.skip("torch is not installed")
    code = "import torch; print(torch.__version__, torch.version.cuda, int(torch._C._GLIBCXX_USE_CXX11_ABI))"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=200)
    version, cuda, abi = said.stdout.split()
    facts = torch_files.read(SITE / "torch", Files())
    assert facts.version == version
    assert str(facts.cuda) == cuda
    assert facts.cxx11_abi == {"1": "new", "0": "old"}[abi]


@pytest.mark.parametrize(("flag", "abi"), [(0, "old"), (1, "new")])
def test_the_abi_is_read_from_what_libc10_exports(
    compile_library: Compiler, tmp_path: Path, flag: int, abi: str
) -> None:
    torch = Torch(compile_library, tmp_path, abi=flag).make()
    facts = torch_files.read(tmp_path / "torch", Files())
    assert (facts.cxx11_abi, facts.version, facts.cuda, facts.cuda_linked) == (abi, "2.9.0", None, None)
    assert torch.lib / "libc10.so" in facts.libraries


def test_the_cuda_that_torch_is_linked_to_is_read_from_its_libraries(compile_library: Compiler, tmp_path: Path) -> None:
    Torch(compile_library, tmp_path, cuda=12).make()
    facts = torch_files.read(tmp_path / "torch", Files())
    assert (facts.cuda, facts.cuda_linked) == ("12.4", 12)


@pytest.mark.parametrize(
    "text", ["", "__version__ = ", "x" * 100 + "(" * 2000, "__version__ = get()", "\0", "__version__ = 3\n"]
)
def test_a_version_file_that_says_nothing_leaves_it_unknown(tmp_path: Path, text: str) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/version.py").write_text(text)
    facts = torch_files.read(tmp_path / "torch", Files())
    assert (facts.version, facts.cuda, facts.cxx11_abi, facts.libraries) == (None, None, None, ())


def test_constants_are_read_and_nothing_is_run(tmp_path: Path) -> None:
    source = tmp_path / "version.py"
    source.write_text("import os\nos.abort()\n__version__: str = '1.2'\ncuda = '12.8'\nhip = None\na, b = 1, 2\n")
    assert torch_files.assignments(source) == {"__version__": "1.2", "cuda": "12.8", "hip": None}


@pytest.mark.parametrize(
    ("needed", "major"),
    [
        (("libcudart.so.13",), 13),
        (("libc.so.6", "libcublasLt.so.12"), 12),
        (("libcufft.so.11",), None),  # its number is not CUDA's
        ((), None),
    ],
)
def test_the_major_version_of_cuda_is_in_the_names(needed: tuple[str, ...], major: int | None) -> None:
    assert torch_files.cuda_major(needed) == major
