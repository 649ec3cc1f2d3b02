from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.environments.conftest import RELEASE, Compiler, make_venv
from toolkit.environments import layout
from toolkit.environments.model import Folder

BASE = Path(sys.base_prefix) / f"bin/python{RELEASE}"


def kinds(folders: tuple[Folder, ...]) -> list[tuple[str, str]]:
    return [(folder.path.name, folder.kind) for folder in folders]


def test_the_environment_of_the_tests_is_read_as_python_itself_sees_it() -> None:
    found = layout.locate(Path(sys.executable))
    assert found.python_version == ".".join(map(str, sys.version_info[:3]))
    assert found.base_prefix == Path(sys.base_prefix)
    code = "import sys, json; print(json.dumps([p for p in sys.path if p.endswith('-packages')]))"
    real = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    folders = layout.with_pth(layout.folders(found, {}))[0]
    assert [str(folder.path) for folder in folders if folder.path.name.endswith("-packages")] == __import__(
        "json"
    ).loads(real.stdout)


@pytest.mark.parametrize("python", ["/usr/bin/python3", "/usr/local/bin/python3"])
def test_a_system_python_is_read_as_it_sees_itself(python: str) -> None:
    if not Path(python).exists():
        pytest.skip(f"there is no {python}")
    code = "import sys, json, platform; print(json.dumps([sys.path, platform.python_version()]))"
    done = subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, check=True)
    path, version = json.loads(done.stdout)
    found = layout.locate(Path(python))
    assert found.kind in {"system", "conda"}
    assert version.startswith(found.python_version or "unknown")
    ours = [str(folder.path) for folder in layout.with_pth(layout.folders(found, {}))[0]]
    assert ours == [entry for entry in path if entry.endswith("-packages") or entry in ours]


def test_a_venv_is_found_from_its_python_and_from_its_folder(venv: Path, site: Path) -> None:
    by_python, by_folder = layout.locate(venv / "bin/python"), layout.locate(venv)
    assert by_python == by_folder
    assert by_python.kind == "venv"
    assert by_python.executable == venv / "bin/python"
    assert by_python.base_executable == BASE.resolve()
    assert by_python.python_version == f"{RELEASE}.4"
    assert [folder.path for folder in layout.folders(by_python, {"HOME": "/nowhere"})] == [site]


def test_a_venv_may_see_the_packages_of_its_base(tmp_path: Path) -> None:
    home = tmp_path / "home"
    user = home / f".local/lib/python{RELEASE}/site-packages"
    user.mkdir(parents=True)
    site = make_venv(tmp_path / "venv", system_site=True)
    found = layout.locate(tmp_path / "venv")
    paths = [folder.path for folder in layout.folders(found, {"HOME": str(home)})]
    assert paths[:2] == [site, user]
    assert Path(sys.base_prefix) / f"lib/python{RELEASE}/site-packages" in paths
    without_user = layout.folders(found, {"HOME": str(home), "PYTHONNOUSERSITE": "1"})
    assert user not in [folder.path for folder in without_user]


def test_a_venv_whose_base_is_gone_says_so(tmp_path: Path) -> None:
    make_venv(tmp_path / "venv", base=tmp_path / "removed/bin/python3")
    found = layout.locate(tmp_path / "venv")
    assert [(p.kind, p.detail) for p in found.problems] == [("base_interpreter_missing", str(tmp_path / "removed/bin"))]
    assert found.python_version == f"{RELEASE}.4"
    assert layout.folders(found, {})


def installation(prefix: Path, release: str = "3.12") -> Path:
    """An interpreter that only its names tell of."""
    for folder in ("bin", f"lib/python{release}/site-packages"):
        (prefix / folder).mkdir(parents=True)
    python = prefix / f"bin/python{release}"
    python.write_bytes(b"\x7fELF but no more")
    (prefix / "bin/python3").symlink_to(python.name)
    return prefix / "bin/python3"


def test_conda_is_known_by_its_records_and_tells_the_whole_version(tmp_path: Path) -> None:
    python = installation(tmp_path / "conda")
    (tmp_path / "conda/conda-meta").mkdir()
    (tmp_path / "conda/conda-meta/python-3.12.9-h5148396_0.json").write_text("{}")
    found = layout.locate(python)
    assert (found.kind, found.python_version, found.release) == ("conda", "3.12.9", "3.12")
    assert layout.locate(tmp_path / "conda").kind == "conda"


def test_debian_keeps_packages_in_three_folders(tmp_path: Path) -> None:
    python = installation(tmp_path / "usr", "3.11")
    for place in ("local/lib/python3.11", "lib/python3", "lib/python3.11"):
        (tmp_path / "usr" / place / "dist-packages").mkdir(parents=True)
    found = layout.locate(python)
    assert (found.kind, found.python_version) == ("system", "3.11")
    places = [folder.path.relative_to(tmp_path / "usr").parent.as_posix() for folder in layout.folders(found, {})]
    assert places[:3] == ["local/lib/python3.11", "lib/python3", "lib/python3.11"]


def test_the_number_inside_python_wins_over_names(compile_library: Compiler, tmp_path: Path) -> None:
    python = installation(tmp_path / "own", "3.13")
    source = 'extern "C" { extern const unsigned long Py_Version = 0x030d02f0; const unsigned long* p = &Py_Version; }'
    real = python.resolve()
    real.write_bytes(compile_library("libpython.so", source).read_bytes())
    assert layout.locate(python).python_version == "3.13.2"


def test_a_folder_of_packages_is_for_the_release_of_its_compiled_files(tmp_path: Path) -> None:
    (tmp_path / "target/package").mkdir(parents=True)
    assert layout.locate(tmp_path / "target").python_version is None
    (tmp_path / "target/package/fast.cpython-310-x86_64-linux-gnu.so").write_bytes(b"")
    found = layout.locate(tmp_path / "target")
    assert (found.kind, found.python_version) == ("folder", "3.10")
    assert kinds(layout.folders(found, {})) == [("target", "target")]


def test_pythonpath_comes_first(venv: Path, tmp_path: Path) -> None:
    (tmp_path / "extra").mkdir()
    found = layout.folders(layout.locate(venv), {"PYTHONPATH": f"{tmp_path}/extra:{tmp_path}/absent"})
    assert kinds(found) == [("extra", "pythonpath"), ("site-packages", "site")]


def test_a_script_in_the_place_of_python_is_told(tmp_path: Path) -> None:
    shim = tmp_path / "python"
    shim.write_text("#!/bin/sh\nexec python3 $@\n")
    found = layout.locate(shim)
    assert found.kind == "missing"
    assert [problem.kind for problem in found.problems] == ["interpreter_is_script"]


def test_a_venv_without_its_python_is_broken_though_its_base_is_there(venv: Path) -> None:
    (venv / "bin/python").unlink()
    assert [problem.kind for problem in layout.locate(venv).problems] == ["interpreter_missing"]


def test_a_venv_that_lost_its_config_is_told_for_python_then_takes_other_packages(venv: Path) -> None:
    (venv / "bin/activate").write_text("")
    assert layout.locate(venv / "bin/python").problems == ()
    (venv / "pyvenv.cfg").unlink()
    for place in (venv, venv / "bin/python"):
        assert [problem.kind for problem in layout.locate(place).problems] == ["venv_config_missing"]


@pytest.mark.parametrize(
    ("name", "content", "kind"),
    [("python", b"no program", "interpreter_not_a_program"), ("python2.7", b"\x7fELF", "interpreter_too_old")],
)
def test_what_is_no_python_3_has_no_packages(tmp_path: Path, name: str, content: bytes, kind: str) -> None:
    (tmp_path / name).write_bytes(content)
    found = layout.locate(tmp_path / name)
    assert [problem.kind for problem in found.problems] == [kind]
    assert layout.folders(found, {"PYTHONPATH": str(tmp_path)}) == ()


def test_a_python_is_never_given_the_packages_of_another_release_above_it(tmp_path: Path) -> None:
    (tmp_path / "lib/python3.11/site-packages").mkdir(parents=True)
    (tmp_path / "own/bin").mkdir(parents=True)
    (tmp_path / "own/bin/python3.9").write_bytes(b"\x7fELF")
    found = layout.locate(tmp_path / "own/bin/python3.9")
    assert (found.prefix, found.python_version, layout.folders(found, {})) == (tmp_path / "own", "3.9", ())


def test_a_folder_with_nothing_in_it_is_told(tmp_path: Path) -> None:
    assert [problem.kind for problem in layout.locate(tmp_path).problems] == ["nothing_installed"]
    (tmp_path / "package").mkdir()
    (tmp_path / "package/__init__.py").write_text("")
    assert layout.locate(tmp_path).problems == ()


@pytest.mark.parametrize("name", ["absent", "loop"])
def test_what_is_not_there_is_told(tmp_path: Path, name: str) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    found = layout.locate(tmp_path / name)
    assert found.kind == "missing"
    assert [problem.kind for problem in found.problems] == ["interpreter_missing"]
    assert layout.folders(found, {}) == ()


def test_pth_files_add_folders_and_their_code_is_not_run(site: Path, venv: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (site / "beside").mkdir()
    (site / "b.pth").write_text(f"# a comment\n{source}\n\nbeside\n/nowhere/at/all\n")
    (site / "a.pth").write_text(f"import os; open({str(tmp_path / 'ran')!r}, 'w')\n")
    folders, problems = layout.with_pth(layout.folders(layout.locate(venv), {}))
    assert [(folder.path, folder.kind) for folder in folders[1:]] == [(source, "pth"), (site / "beside", "pth")]
    assert folders[1].source == site / "b.pth"
    assert [(p.kind, p.subject) for p in problems] == [("pth_import", "a.pth"), ("pth_folder_missing", "b.pth")]
    assert not (tmp_path / "ran").exists()


def test_a_linked_lib64_is_the_same_folder(venv: Path, site: Path) -> None:
    (venv / "lib64").symlink_to("lib")
    assert [folder.path for folder in layout.folders(layout.locate(venv), {})] == [site]
