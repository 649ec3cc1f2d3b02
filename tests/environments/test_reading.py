from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.environments.conftest import POISON, Compiler, Torch, install
from toolkit import environments
from toolkit.environments import binaries, reading
from toolkit.environments.model import Environment


def kinds(environment: Environment) -> list[str]:
    return [problem.kind for problem in environment.problems]


def test_nothing_that_is_judged_is_ever_run(compile_library: Compiler, venv: Path, site: Path, tmp_path: Path) -> None:
    Torch(compile_library, site).make().extension(site)
    ran = tmp_path / "ran"
    poison = f"open({str(ran)!r}, 'w').close()\n" + POISON
    for name in ("flash_attn/__init__.py", "torch/__init__.py", "sitecustomize.py", "usercustomize.py", "numpy.py"):
        (site / name).parent.mkdir(exist_ok=True)
        (site / name).write_text(poison)
    (site / "evil.pth").write_text(f"import os; open({str(ran)!r}, 'w')\n")
    (venv / "bin/python").unlink()
    (venv / "bin/python").write_text(f"#!/bin/sh\ntouch {ran}\n")
    (venv / "bin/python").chmod(0o755)
    environment = reading.read(venv / "bin/python")
    judged = binaries.read(environment)
    assert environment.torch is not None
    assert [binary.resolution.loads for binary in judged.files] == [True]
    assert not ran.exists()


def test_the_tests_own_environment_is_read_without_its_heavy_packages() -> None:
    before = set(sys.modules)
    environment = reading.read(Path(sys.executable))
    assert environment.find("pytest") is not None
    assert environment.find("not-installed") is None
    assert not {"torch", "numpy", "transformers"} & (set(sys.modules) - before)


def test_what_others_need_is_at_the_rooms_door() -> None:
    files = environments.Files()
    environment = environments.read(Path(sys.executable), files=files)
    assert environments.read_binaries(environment, files=files).torch_mismatches == ()


def test_an_empty_place_is_an_environment_with_problems(tmp_path: Path) -> None:
    missing = reading.read(tmp_path / "absent/bin/python")
    assert kinds(missing) == ["interpreter_missing"]
    assert missing.torch is None
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare/pyvenv.cfg").write_text("home = /nowhere\n")
    assert kinds(reading.read(tmp_path / "bare")) == ["base_interpreter_missing", "site_folder_missing"]


def test_metadata_of_one_torch_over_the_files_of_another_is_told(
    compile_library: Compiler, venv: Path, site: Path
) -> None:
    Torch(compile_library, site, version="2.9.0").make()
    assert "torch_version_differs" not in kinds(reading.read(venv))
    (site / "torch/version.py").write_text("__version__ = '2.9.0+cu128'\n")
    assert "torch_version_differs" not in kinds(reading.read(venv))
    (site / "torch/version.py").write_text("__version__ = '2.8.0'\n")
    problem = next(p for p in reading.read(venv).problems if p.kind == "torch_version_differs")
    assert problem.detail == "2.9.0 and 2.8.0"


def test_the_roles_own_variables_count_and_ours_do_not(
    venv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path / "extra", "plugin", "3.0")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "extra"))
    monkeypatch.setenv("LD_LIBRARY_PATH", "/ours")
    assert reading.read(venv).find("plugin") is None
    assert reading.read(venv).library_path is None
    environ = {"PYTHONPATH": str(tmp_path / "extra"), "LD_LIBRARY_PATH": "/a:/b", "LD_PRELOAD": "/x.so /y.so:/z.so"}
    role = reading.read(venv, environ=environ)
    assert role.find("plugin") is not None
    assert role.library_path == "/a:/b"
    assert role.preload == (Path("/x.so"), Path("/y.so"), Path("/z.so"))
    assert reading.read(venv, environ=environ, ld_library_path="/c").library_path == "/c"


def test_conflicts_are_those_of_this_environment(venv: Path, site: Path) -> None:
    install(site, "vllm", "0.9.0", requires=["torch==2.7.0", "transformers>=4.51"])
    install(site, "torch", "2.6.0")
    found = [(c.required_by, c.requirement, c.found) for c in reading.read(venv).conflicts]
    assert found == [("vllm", "torch==2.7.0", "2.6.0"), ("vllm", "transformers>=4.51", None)]


def test_the_package_that_an_import_would_take_is_found_by_order(venv: Path, site: Path, tmp_path: Path) -> None:
    for place in (site, tmp_path / "first"):
        (place / "package").mkdir(parents=True)
    environment = reading.read(venv, environ={"PYTHONPATH": str(tmp_path / "first")})
    assert environment.package_folder("package") == tmp_path / "first/package"
    assert environment.package_folder("absent") is None


@pytest.mark.parametrize("row", ["a\0b.so,,", f"a.so,,{'9' * 5000}", "../../../../etc/passwd.so,,", "/dev/zero.so,,"])
def test_no_line_of_an_installers_record_is_too_strange(venv: Path, site: Path, row: str) -> None:
    (install(site, "odd") / "RECORD").write_text(row + "\n")
    files = environments.Files()
    environment = environments.read(venv, files=files)
    assert environments.read_binaries(environment, files=files).files == ()


def test_a_pipe_in_the_place_of_metadata_is_not_waited_for(venv: Path, site: Path) -> None:
    (site / "a-1.0.dist-info").mkdir()
    os.mkfifo(site / "a-1.0.dist-info/METADATA")
    os.mkfifo(site / "a.pth")
    assert kinds(reading.read(venv)) == ["metadata_broken"]


def test_where_the_python_is_not_known_what_hangs_on_it_is_no_conflict(tmp_path: Path) -> None:
    needs = ('tomli; python_version < "3.11"', 'new; python_full_version >= "3.12.1"', "always")
    install(tmp_path, "package", requires=needs)
    assert [conflict.name for conflict in reading.read(tmp_path).conflicts] == ["always"]
