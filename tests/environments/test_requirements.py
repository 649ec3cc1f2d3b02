from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.environments import reading, requirements
from toolkit.environments.model import Distribution, Layout


def package(name: str, version: str | None = "1.0", *requires: str, python: str | None = None) -> Distribution:
    return Distribution(name, version, Path("/x"), Path("/"), requires, requires_python=python)


def unmet(*packages: Distribution, python: str = "3.11.7") -> list[tuple[str, str, str | None]]:
    layout = Layout("venv", Path("/x"), python_version=python, machine="x86_64")
    return [(c.required_by, c.name, c.found) for c in requirements.conflicts(packages, layout)]


def test_missing_and_wrong_versions_are_told_with_what_is_there() -> None:
    found = unmet(package("a", "1", "b>=2", "c", "d<3"), package("b", "1.9"), package("d", "2.9"))
    assert found == [("a", "b", "1.9"), ("a", "c", None)]


def test_versions_are_compared_as_versions() -> None:
    assert unmet(package("a", "1", "b>=2.9"), package("b", "2.10")) == []
    assert unmet(package("a", "1", "torch==2.4.0"), package("torch", "2.4.0+cu124")) == []
    assert unmet(package("a", "1", "torch==2.4.0"), package("torch", "2.4.1+cu124")) == [("a", "torch", "2.4.1+cu124")]
    assert unmet(package("a", "1", "torch>=2.6"), package("torch", "2.7.0a0+nv25.3")) == []
    assert unmet(package("a", "1", "b~=1.4"), package("b", "2.0")) == [("a", "b", "2.0")]


def test_markers_hold_for_the_environments_own_python() -> None:
    asking = package(
        "a", "1", 'old; python_version < "3.10"', 'arm; platform_machine == "aarch64"', 'win; os_name == "nt"'
    )
    assert unmet(asking, python="3.11.7") == []
    assert unmet(asking, python="3.9.2") == [("a", "old", None)]


def test_extras_count_only_where_someone_asks_for_them() -> None:
    inner = package("inner", "1", 'fast-part>=2; extra == "fast"', 'other; extra == "unused"')
    assert unmet(package("outer", "1", "inner"), inner) == []
    assert unmet(package("outer", "1", "inner[fast]"), inner) == [("inner", "fast-part", None)]
    assert unmet(package("outer", "1", "inner[Fast]"), inner, package("fast-part", "2")) == []


def test_extras_of_extras_are_followed_and_circles_end() -> None:
    first = package("first", "1", 'second[x]; extra == "x"')
    second = package("second", "1", 'first[x]; extra == "x"', 'lost; extra == "x"')
    assert unmet(package("top", "1", "first[x]"), first, second) == [("second", "lost", None)]


def test_the_python_itself_is_a_requirement() -> None:
    assert unmet(package("a", python=">=3.12")) == [("a", "python", "3.11.7")]
    assert unmet(package("a", python=">=3.10.1"), python="3.10") == []
    assert unmet(package("a", python="nonsense")) == []


@pytest.mark.parametrize("version", [None, "", "not a version", "2.0-beta!"])
def test_a_version_that_is_none_is_not_judged(version: str | None) -> None:
    assert unmet(package("a", "1", "b>=5"), package("b", version)) == []


def test_unreadable_requirements_and_versions_are_told() -> None:
    problems = list(requirements.unreadable([package("a", "one", "b >= = 2", "fine>=1")]))
    assert [(p.kind, p.subject) for p in problems] == [("requirement_invalid", "a"), ("metadata_broken", "a")]


def test_the_tests_own_environment_has_the_conflicts_that_pip_sees() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pip", "check"], capture_output=True, text=True, check=False, timeout=120
    )
    environment = reading.read(Path(sys.executable))
    assert (environment.conflicts == ()) is (done.returncode == 0), done.stdout


@given(st.lists(st.text(max_size=40), max_size=5))
def test_arbitrary_requirements_never_crash(texts: list[str]) -> None:
    layout = Layout("venv", Path("/x"), python_version="3.11.7")
    requirements.conflicts([package("a", "1", *texts)], layout)
    list(requirements.unreadable([package("a", "1", *texts)]))
