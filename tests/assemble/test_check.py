from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from toolkit.assemble import check
from toolkit.compat.model import Report
from toolkit.config import load
from toolkit.config.load import LoadedDeployment
from toolkit.home import Home
from toolkit.host.model import Core, Gpu, Host

HOST = Host(cores=(Core(cpus=(0,)),), cpus_allowed=(0,))
GPU = Gpu(index=0, uuid="GPU-1", name=None, compute_capability="9.0", memory_bytes=None, used_bytes=None)


def package(site: Path, name: str, version: str, *requires: str) -> None:
    folder = site / f"{name.replace('-', '_')}-{version}.dist-info"
    folder.mkdir(parents=True)
    lines = [f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {each}" for each in requires)]
    (folder / "METADATA").write_text("Metadata-Version: 2.1\n" + "\n".join(lines) + "\n")
    (folder / "RECORD").write_text("")


def venv(folder: Path) -> Path:
    """A venv of this Python without any package; nothing is run to make it."""
    (folder / "bin").mkdir(parents=True)
    (folder / "bin/python").symlink_to(Path(sys.executable).resolve())
    home, version = Path(sys.executable).resolve().parent, ".".join(map(str, sys.version_info[:3]))
    (folder / "pyvenv.cfg").write_text(f"home = {home}\nversion = {version}\n")
    (folder / "lib" / f"python3.{sys.version_info[1]}" / "site-packages").mkdir(parents=True)
    return folder


def site(folder: Path) -> Path:
    return folder / "lib" / f"python3.{sys.version_info[1]}" / "site-packages"


@pytest.fixture
def deployment(tmp_path: Path) -> LoadedDeployment:
    venv(tmp_path / "env")
    package(site(tmp_path / "env"), "aiohttp", "3.10.0")
    text = """\
version: 1
name: test
environments:
  web: {python: env/bin/python}
services:
  web: {runtime: command, environment: web, argv: [sleep, "1"], ready: {log: ok}}
"""
    (tmp_path / "deploy.yaml").write_text(text)
    return load.deployment(tmp_path / "deploy.yaml")


def ask(deployment: LoadedDeployment, tmp_path: Path, host: Host = HOST, **environ: str) -> Report:
    return check.check_deployment(deployment, host, Home(tmp_path / "home"), environ={"HOME": str(tmp_path), **environ})


def count_reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    reads: list[int] = []
    real = check.read_views

    def counted(*arguments: object, **named: object) -> object:
        reads.append(1)
        return real(*arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(check, "read_views", counted)
    return reads


def test_the_same_question_is_answered_from_memory(deployment, tmp_path, monkeypatch) -> None:
    reads = count_reads(monkeypatch)
    first, second = ask(deployment, tmp_path), ask(deployment, tmp_path)
    assert first == second
    assert first.verdict == "runnable"
    assert len(reads) == 1


def test_an_installed_package_asks_again(deployment, tmp_path, monkeypatch) -> None:
    reads = count_reads(monkeypatch)
    ask(deployment, tmp_path)
    package(site(tmp_path / "env"), "tensorrt-llm", "0.12.0", "torch<=2.4.0")
    report = ask(deployment, tmp_path)
    assert len(reads) == 2
    assert report.verdict == "incompatible"


def test_a_package_written_over_in_place_asks_again(deployment, tmp_path, monkeypatch) -> None:
    reads = count_reads(monkeypatch)
    ask(deployment, tmp_path)
    (record,) = site(tmp_path / "env").glob("*.dist-info/RECORD")
    folder = site(tmp_path / "env").stat()
    record.write_text("aiohttp/__init__.py,,\n")
    os.utime(site(tmp_path / "env"), ns=(folder.st_atime_ns, folder.st_mtime_ns))
    ask(deployment, tmp_path)
    assert len(reads) == 2


@pytest.mark.parametrize("change", [{"driver_version": "580.1"}, {"gpus": (GPU,)}])
def test_another_driver_or_gpu_asks_again(deployment, tmp_path, monkeypatch, change) -> None:
    reads = count_reads(monkeypatch)
    ask(deployment, tmp_path)
    ask(deployment, tmp_path, HOST.model_copy(update=change))
    assert len(reads) == 2


def test_a_variable_that_rules_ask_about_asks_again_and_another_does_not(deployment, tmp_path, monkeypatch) -> None:
    reads = count_reads(monkeypatch)
    ask(deployment, tmp_path)
    ask(deployment, tmp_path, EDITOR="vi")
    assert len(reads) == 1
    ask(deployment, tmp_path, LD_LIBRARY_PATH="/usr/local/cuda/lib64")
    assert len(reads) == 2


def test_a_damaged_memory_is_as_none(deployment, tmp_path, monkeypatch) -> None:
    reads = count_reads(monkeypatch)
    ask(deployment, tmp_path)
    (tmp_path / "home/checks/test.json").write_text('{"fingerprint": 1')
    assert ask(deployment, tmp_path).verdict == "runnable"
    assert len(reads) == 2


def test_a_home_that_cannot_be_written_costs_time_alone(deployment, tmp_path) -> None:
    (tmp_path / "home").write_text("no folder")
    assert ask(deployment, tmp_path).verdict == "runnable"


def test_with_a_recorded_host_nothing_of_this_machine_is_read(deployment, tmp_path, monkeypatch) -> None:
    reads = count_reads(monkeypatch)
    report = ask(deployment, tmp_path, HOST.model_copy(update={"recorded": True}))
    assert report.verdict == "unknown"
    assert reads == []
    assert [finding.id for finding in report.findings] == ["environment-not-read"]


def test_a_package_that_raises_on_import_is_not_imported(tmp_path) -> None:
    venv(tmp_path / "env")
    poison = site(tmp_path / "env") / "torch"
    poison.mkdir()
    (poison / "__init__.py").write_text("raise SystemExit('imported')\n")
    (poison / "version.py").write_text("__version__ = '2.4.0'\ncuda = '12.4'\n")
    package(site(tmp_path / "env"), "torch", "2.4.0")
    report = check.check_environments({"x": tmp_path / "env/bin/python"}, HOST, {})
    assert report.environments["x"]["packages"]["torch"] == "2.4.0"
    assert report.environments["x"]["torch_cuda"] == "12.4"


def test_an_environment_whose_python_is_gone_is_a_finding_not_a_crash(tmp_path) -> None:
    venv(tmp_path / "env")
    (tmp_path / "env/pyvenv.cfg").write_text("home = /nowhere/bin\nversion = 3.11.7\n")
    (tmp_path / "env/bin/python").unlink()
    (tmp_path / "env/bin/python").symlink_to("/nowhere/bin/python3")
    report = check.check_environments({"x": tmp_path / "env"}, HOST, {})
    assert report.verdict == "incompatible"
    assert report.findings[0].id == "environment-broken"


def test_an_mps_folder_that_a_service_is_told_is_the_one_that_counts(tmp_path: Path) -> None:
    venv(tmp_path / "env")
    (tmp_path / "deploy.yaml").write_text(
        "version: 1\nname: test\nenvironments:\n  web: {python: env/bin/python}\nservices:\n  web: {runtime: command, "
        'environment: web, argv: [sleep, "1"], ready: {log: ok}, env: {CUDA_MPS_PIPE_DIRECTORY: /nowhere}}\n'
    )
    report = ask(load.deployment(tmp_path / "deploy.yaml"), tmp_path, CUDA_MPS_PIPE_DIRECTORY=str(tmp_path))
    (found,) = [each for each in report.findings if each.id == "mps-daemon"]
    assert "/nowhere" in found.what
