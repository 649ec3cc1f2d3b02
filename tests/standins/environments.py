"""Python environments in which a stand-in is installed, laid out as an installer leaves them."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

HERE = Path(__file__).parent
# Program and release of every package beside this file.
RELEASES = tuple(sorted(tuple(folder.name.split("-")) for folder in (HERE / "packages").iterdir() if folder.is_dir()))


def site_packages(prefix: Path) -> Path:
    return prefix / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"


def make(prefix: Path, name: str, release: str, *, version: str | None = None, **others: str) -> Path:
    """The interpreter of a new environment with this stand-in; ``others``: further distributions, name to version."""
    site = site_packages(prefix)
    (prefix / "bin").mkdir(parents=True)
    python = prefix / "bin/python"
    python.symlink_to(Path(sys.executable).resolve())
    settings = {"home": Path(sys.executable).resolve().parent, "version": ".".join(map(str, sys.version_info[:3]))}
    (prefix / "pyvenv.cfg").write_text("".join(f"{key} = {value}\n" for key, value in settings.items()))
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(HERE / "packages" / f"{name}-{release}" / name, site / name, ignore=ignored)
    shutil.copy(HERE / "openai_server.py", site / "standin_server.py")
    shutil.copy(HERE / "openai_programs.py", site / "standin_programs.py")
    scripts = {"vllm": "vllm.standin:main"} if name == "vllm" else {}
    distribution(site, name, version or release, scripts)
    for other, its_version in others.items():
        distribution(site, other.replace("_", "-"), its_version, {})
    for script, target in scripts.items():
        _script(prefix / "bin" / script, python, target)
    return python


def distribution(site: Path, name: str, version: str, scripts: dict[str, str]) -> None:
    """The metadata of an installed distribution."""
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "INSTALLER").write_text("pip\n")
    if scripts:
        lines = "".join(f"{script} = {target}\n" for script, target in scripts.items())
        (info / "entry_points.txt").write_text(f"[console_scripts]\n{lines}")


def _script(path: Path, python: Path, target: str) -> None:
    module, function = target.split(":")
    path.write_text(f"#!{python}\nimport sys\nfrom {module} import {function}\nsys.exit({function}())\n")
    path.chmod(0o755)
