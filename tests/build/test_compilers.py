from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from toolkit.build.compilers import find_compiler
from toolkit.errors import ToolkitError

PYTHON = Path(sys.executable)
GXX = shutil.which("g++")
needs_gxx = pytest.mark.skipif(GXX is None, reason="needs g++")


def program(path: Path, script: str) -> Path:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def environ(**changes: str) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], **changes}


def test_no_compiler_at_all_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ToolkitError, match=r"no C\+\+ compiler\. Install") as caught:
        find_compiler({"PATH": str(tmp_path)}, PYTHON)
    assert caught.value.code == "no_compiler"
    assert "g++" in str(caught.value.hint)


@pytest.mark.slow
@needs_gxx
def test_the_systems_compiler_is_found_and_works() -> None:
    found = find_compiler(environ(), PYTHON)
    assert found.command.endswith("g++")
    assert found.version
    assert found.notes == ()


@pytest.mark.slow
@needs_gxx
def test_a_compiler_that_links_its_own_static_library_is_passed_over_with_a_note(tmp_path: Path) -> None:
    static = program(tmp_path / "static-g++", f'exec {GXX} "$@" -static-libstdc++')
    found = find_compiler(environ(CXX=str(static)), PYTHON)
    assert found.command == GXX
    assert "static C++ library" in found.notes[0]
    assert str(static) in found.notes[0]


@pytest.mark.slow
@needs_gxx
def test_a_cxx_that_cannot_compile_is_passed_over_with_its_last_words(tmp_path: Path) -> None:
    broken = program(tmp_path / "broken", "echo 'cannot find stddef.h' >&2; exit 1")
    found = find_compiler(environ(CXX=str(broken)), PYTHON)
    assert found.command == GXX
    assert "cannot find stddef.h" in found.notes[0]


@pytest.mark.slow
@needs_gxx
def test_a_cxx_that_is_not_there_is_passed_over_with_a_note() -> None:
    assert "not there" in find_compiler(environ(CXX="/nowhere/g++"), PYTHON).notes[0]


@pytest.mark.slow
@needs_gxx
def test_a_library_that_crashes_when_it_runs_rules_its_compiler_out(tmp_path: Path) -> None:
    script = f"""case "$*" in *probe.cpp*) echo '#include <cstdlib>
#include <string>
std::string text;
extern "C" int coexist_probe() {{ std::abort(); }}' > "{tmp_path}/bad.cpp"
exec {GXX} -shared -fPIC "{tmp_path}/bad.cpp" -o "$7" ;; esac"""
    crashing = program(tmp_path / "g++", script)
    with pytest.raises(ToolkitError, match="does not run"):
        find_compiler({"PATH": f"{tmp_path}:/usr/bin:/bin", "CXX": str(crashing)}, PYTHON)
