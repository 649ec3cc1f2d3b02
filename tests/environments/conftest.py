"""Small real libraries, compiled here, and small environments laid out as installers leave them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

RELEASE = f"{sys.version_info.major}.{sys.version_info.minor}"
SITE = Path(sys.prefix) / f"lib/python{RELEASE}/site-packages"


@dataclass(frozen=True)
class Compiler:
    """g++ as the tests use it: one source text to one shared library."""

    folder: Path

    def __call__(
        self,
        name: str,
        source: str = "",
        *,
        needs: Iterable[Path] = (),
        soname: str | None = None,
        flags: Iterable[str] = (),
        folder: Path | None = None,
    ) -> Path:
        place = folder or self.folder
        place.mkdir(parents=True, exist_ok=True)
        target = place / name
        argv = ("-shared", "-fPIC", "-O0", "-Wl,--no-as-needed", *flags)
        argv += (f"-Wl,-soname,{soname or name}",) if soname != "" else ()
        self._compile(source, argv, tuple(needs), target)
        return target

    def _compile(self, source: str, argv: tuple[str, ...], needs: tuple[Path, ...], target: Path) -> None:
        """What was compiled before is copied: a library holds nothing of the place it was made in."""
        key = (source, argv, *((path.name, path.read_bytes()) for path in needs))
        if key not in _compiled:
            text = target.with_name(f"{target.name}.cpp")
            text.write_text(source)
            subprocess.run(["g++", "-o", target, text, *argv, *needs], check=True, capture_output=True, timeout=120)
            text.unlink()
            _compiled[key] = target.read_bytes()
        target.write_bytes(_compiled[key])
        target.chmod(0o755)


_compiled: dict[tuple[Any, ...], bytes] = {}


@pytest.fixture
def compile_library(tmp_path: Path) -> Compiler:
    if shutil.which("g++") is None:
        pytest.skip("g++ is not installed")
    return Compiler(tmp_path / "compiled")


def install(
    site: Path,
    name: str,
    version: str = "1.0",
    *,
    requires: Iterable[str] = (),
    headers: Iterable[str] = (),
    record: Iterable[Path] = (),
) -> Path:
    """A distribution's dist-info as pip leaves it; returns that folder."""
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    lines += [*(f"Requires-Dist: {text}" for text in requires), *headers, "", "A description: not a header."]
    (info / "METADATA").write_text("\n".join(lines) + "\n")
    rows = [f"{path.relative_to(site)},sha256=x,{path.stat().st_size}\r\n" for path in record]
    (info / "RECORD").write_text("".join(rows))
    (info / "INSTALLER").write_text("pip\n")
    return info


def make_venv(folder: Path, *, base: Path | None = None, system_site: bool = False, release: str = RELEASE) -> Path:
    """A venv's folder around a real or made-up base interpreter; returns its site-packages."""
    site = folder / f"lib/python{release}/site-packages"
    site.mkdir(parents=True)
    python = base or Path(sys.base_prefix) / f"bin/python{RELEASE}"
    (folder / "bin").mkdir()
    (folder / "bin/python").symlink_to(python)
    (folder / "pyvenv.cfg").write_text(
        f"home = {python.parent}\ninclude-system-site-packages = {str(system_site).lower()}\nversion = {release}.4\n"
    )
    return site


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    """A venv of the Python that runs the tests, with nothing installed."""
    make_venv(tmp_path / "venv")
    return tmp_path / "venv"


@pytest.fixture
def site(venv: Path) -> Path:
    return venv / f"lib/python{RELEASE}/site-packages"


def real_libraries(limit: int) -> list[Path]:
    """Compiled files of the environment that runs the tests, one or a few a package, smaller ones first."""
    found = sorted((path for path in SITE.rglob("*.so") if path.is_file()), key=lambda p: (p.stat().st_size, p.name))
    packages: dict[str, list[Path]] = {}
    for path in found:
        packages.setdefault(path.relative_to(SITE).parts[0], []).append(path)
    chosen = [path for paths in packages.values() for path in paths[-2:]]
    return sorted(chosen)[:limit]


TORCH_HEADER = """
#include <string>
namespace c10 {
struct SourceLocation { const char* function; const char* file; unsigned line; };
struct Error { Error(SourceLocation, std::string); };
namespace detail { void torchCheckFail(const char*, const char*, unsigned, const std::string&); }
namespace cuda { int SetDevice(%(device)s); }
}
"""
C10 = """
namespace c10 { Error::Error(SourceLocation, std::string) {} }
void c10::detail::torchCheckFail(const char*, const char*, unsigned, const std::string&) {}
"""
EXTENSION = """
int run(int n) {
    if (n) c10::detail::torchCheckFail("a", "b", 1, "c");
    return %s;
}
c10::Error make() { return c10::Error(c10::SourceLocation{"a", "b", 1}, "c"); }
"""


@dataclass(frozen=True)
class Torch:
    """A made-up torch: real libraries with a few of torch's functions, and a package that can't be imported.

    ``cuda``: major version of the CUDA runtime it is linked to, whose wheel is beside it; None: built without CUDA.
    """

    compiler: Compiler
    site: Path
    version: str = "2.9.0"
    abi: int = 1
    cuda: int | None = None
    device: str = "signed char"

    @property
    def lib(self) -> Path:
        return self.site / "torch/lib"

    @property
    def header(self) -> str:
        return TORCH_HEADER % {"device": self.device}

    def make(self) -> Torch:
        flags = [f"-D_GLIBCXX_USE_CXX11_ABI={self.abi}", "-Wl,-rpath,$ORIGIN"]
        c10 = self.compiler("libc10.so", self.header + C10, folder=self.lib, flags=flags)
        cpu = self.compiler("libtorch_cpu.so", needs=[c10], folder=self.lib, flags=flags)
        needs = [c10, cpu]
        deps: list[Path] = []
        if self.cuda:
            runtime = self.runtime()
            wheel = [*flags, "-Wl,-rpath,$ORIGIN:$ORIGIN/../../nvidia/cuda_runtime/lib"]
            source = self.header + f"int c10::cuda::SetDevice({self.device}) {{ return 1; }}"
            needs.append(self.compiler("libc10_cuda.so", source, needs=[c10, runtime], folder=self.lib, flags=wheel))
            needs.append(self.compiler("libtorch_cuda.so", needs=[cpu, runtime], folder=self.lib, flags=wheel))
            deps = [runtime]
            self.compiler("libtorch_global_deps.so", needs=deps, folder=self.lib, flags=wheel)
        else:
            self.compiler("libtorch_global_deps.so", folder=self.lib, flags=flags)
        module = [*flags, "-Wl,-rpath,$ORIGIN/lib"]
        link = f"-Wl,-rpath-link,{self.site}/nvidia/cuda_runtime/lib"
        self.compiler(
            "_C.cpython-x-linux-gnu.so", needs=needs, folder=self.site / "torch", flags=[*module, link], soname=""
        )
        (self.site / "torch/__init__.py").write_text(POISON)
        cuda = f"'{self.cuda}.4'" if self.cuda else "None"
        (self.site / "torch/version.py").write_text(
            f"from typing import Optional\n__version__ = {self.version!r}\ncuda: Optional[str] = {cuda}\nhip = None\n"
        )
        install(self.site, "torch", self.version)
        return self

    def runtime(self) -> Path:
        place = self.site / "nvidia/cuda_runtime/lib"
        return self.compiler(f"libcudart.so.{self.cuda}", 'extern "C" int cudaMalloc() { return 0; }', folder=place)

    def extension(self, site: Path, name: str = "flash_attn_2_cuda", *, requires: Iterable[str] = ()) -> Path:
        """An extension module built against this torch and installed in another environment."""
        uses_cuda = "c10::cuda::SetDevice(0)" if self.cuda else "0"
        needs = sorted(self.lib.glob("lib*.so")) + ([self.runtime()] if self.cuda else [])
        needs = [path for path in needs if "global_deps" not in path.name]
        flags = [f"-D_GLIBCXX_USE_CXX11_ABI={self.abi}", f"-Wl,-rpath-link,{self.site}/nvidia/cuda_runtime/lib"]
        source = self.header + EXTENSION % uses_cuda
        file = self.compiler(f"{name}.cpython-x-linux-gnu.so", source, needs=needs, folder=site, flags=flags, soname="")
        install(site, name.replace("_", "-"), "2.8.3", requires=requires, record=[file])
        return file


POISON = "raise SystemExit('a judged package was imported')\n"
