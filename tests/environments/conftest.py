"""Small real libraries, compiled here, and small environments laid out as installers leave them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

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
        text = place / f"{name}.cpp"
        text.write_text(source)
        target = place / name
        argv = ["g++", "-shared", "-fPIC", "-O0", "-o", target, text, "-Wl,--no-as-needed"]
        argv += [f"-Wl,-soname,{soname or name}"] if soname != "" else []
        subprocess.run([*argv, *flags, *needs], check=True, capture_output=True, timeout=120)
        text.unlink()
        return target


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
