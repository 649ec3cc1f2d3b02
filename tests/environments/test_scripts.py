from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.environments.conftest import install
from toolkit.environments import reading
from toolkit.environments.model import Script


def scripts(venv: Path, site: Path, head: str | None) -> Script:
    info = install(site, "vllm")
    (info / "entry_points.txt").write_text("[console_scripts]\nvllm = vllm.cli:main\n[other]\nx = y\n")
    if head is not None:
        (venv / "bin/vllm").write_text(head)
    (found,) = reading.read(venv).scripts
    return found


@pytest.mark.parametrize(
    ("head", "interpreter"),
    [
        ("#!/opt/venv/bin/python\nimport sys\n", "/opt/venv/bin/python"),
        ("#!/opt/venv/bin/python3.11 -I\n", "/opt/venv/bin/python3.11"),
        ("#!/bin/sh\n'''exec' \"/a long/path/bin/python3\" \"$0\" \"$@\"\n' '''\n", "/a long/path/bin/python3"),
        ("#!/bin/sh\n'''exec' /long/bin/python3 \"$0\" \"$@\"\n' '''\n", "/long/bin/python3"),
        ("#!/bin/bash\nexec vllm\n", None),
        ("\x7fELF", None),
        ("", None),
    ],
)
def test_a_script_says_which_python_it_starts(venv: Path, site: Path, head: str, interpreter: str | None) -> None:
    found = scripts(venv, site, head)
    assert (found.name, found.distribution, found.path) == ("vllm", "vllm", venv / "bin/vllm")
    assert found.interpreter == (Path(interpreter) if interpreter else None)


def test_a_script_that_is_gone_is_told(venv: Path, site: Path) -> None:
    assert scripts(venv, site, None).path is None


def test_the_scripts_of_the_tests_own_environment_start_its_python() -> None:
    found = {script.name: script for script in reading.read(Path(sys.executable)).scripts}
    assert found["pytest"].interpreter is not None
    assert found["pytest"].interpreter.resolve() == Path(sys.executable).resolve()
