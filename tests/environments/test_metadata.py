from __future__ import annotations

import json
from importlib.metadata import distributions
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.environments.conftest import SITE, install
from toolkit.environments import metadata
from toolkit.environments.model import Distribution, Folder, Problem


def read(*folders: Path) -> tuple[dict[str, Distribution], tuple[Problem, ...]]:
    found, problems = metadata.distributions([Folder(folder, "site") for folder in folders])
    assert list(found) == sorted(found, key=lambda d: d.name)
    return {distribution.name: distribution for distribution in found}, problems


def told(problems: tuple[Problem, ...]) -> list[tuple[str, str]]:
    return [(problem.kind, problem.subject) for problem in problems]


def test_the_tests_own_packages_are_those_that_importlib_sees() -> None:
    real = {
        (d.metadata["Name"] or "").lower().replace("_", "-").replace(".", "-"): d
        for d in distributions(path=[str(SITE)])
    }
    found, problems = read(SITE)
    assert set(found) == set(real)
    assert {name: d.version for name, d in found.items()} == {name: d.version for name, d in real.items()}
    assert {n: sorted(d.requires) for n, d in found.items()} == {
        n: sorted(" ".join(text.split()) for text in d.requires or []) for n, d in real.items()
    }
    for name, distribution in found.items():
        entries = {(e.group, e.name, e.value) for e in real[name].entry_points}
        assert {(e.group, e.name, e.value) for e in distribution.entry_points} == entries
    assert [p for p in problems if p.kind == "metadata_broken"] == []


def test_a_distribution_says_what_it_needs_and_where_it_came_from(tmp_path: Path) -> None:
    headers = ["Requires-Python: >=3.9", "Provides-Extra: Fast_Mode"]
    info = install(tmp_path, "Some.Package", "2.1", requires=["torch>=2", 'numpy; extra == "x"'], headers=headers)
    (info / "entry_points.txt").write_text("[console_scripts]\nServe = some.cli:main\n[a.group]\nname=value\n")
    (info / "direct_url.json").write_text(
        json.dumps({"url": "https://user:token@files.example/some-2.1-py3-none-any.whl", "archive_info": {}})
    )
    found, problems = read(tmp_path)
    package = found["some-package"]
    assert problems == ()
    assert package.requires == ("torch>=2", 'numpy; extra == "x"')
    assert (package.requires_python, package.extras) == (">=3.9", ("fast-mode",))
    assert [(e.group, e.name, e.value) for e in package.entry_points] == [
        ("console_scripts", "Serve", "some.cli:main"),
        ("a.group", "name", "value"),
    ]
    assert package.source_url == "https://files.example/some-2.1-py3-none-any.whl", "credentials stay out"


def test_an_editable_install_points_to_its_source(tmp_path: Path) -> None:
    source = tmp_path / "my source"
    source.mkdir()
    for name, folder in (("here", source), ("gone", tmp_path / "gone")):
        info = install(tmp_path / "site", name)
        (info / "direct_url.json").write_text(json.dumps({"url": folder.as_uri(), "dir_info": {"editable": True}}))
    found, problems = read(tmp_path / "site")
    assert found["here"].editable == source
    assert told(problems) == [("editable_missing", "gone")]


def test_old_egg_info_is_read_as_a_folder_and_as_a_file(tmp_path: Path) -> None:
    egg = tmp_path / "old_style-1.5.egg-info"
    egg.mkdir()
    (egg / "PKG-INFO").write_text("Metadata-Version: 1.1\nName: old-style\nVersion: 1.5\n")
    (egg / "requires.txt").write_text('six\n\n[fast]\ncython>=3\n\n[:python_version < "3.9"]\nbackport\n')
    (tmp_path / "single-0.1.egg-info").write_text("Metadata-Version: 1.0\nName: single\nVersion: 0.1\n")
    found, problems = read(tmp_path)
    assert problems == ()
    assert found["single"].version == "0.1"
    assert found["old-style"].requires == (
        "six",
        'cython>=3 ; extra == "fast"',
        'backport ; (python_version < "3.9")',
    )


@pytest.mark.parametrize(
    "content",
    [None, b"", b"\xff\xfe\x00", b"Name: x\n", b"Version: 1\n", b"Name: \nVersion: 1\n", b"Name: a/../b\nVersion: 1\n"],
)
def test_broken_metadata_is_told_and_the_rest_is_still_read(tmp_path: Path, content: bytes | None) -> None:
    install(tmp_path, "healthy")
    broken = tmp_path / "broken-1.0.dist-info"
    broken.mkdir()
    if content is not None:
        (broken / "METADATA").write_bytes(content)
    found, problems = read(tmp_path)
    assert set(found) == {"healthy"}
    assert told(problems) == [("metadata_broken", "broken-1.0.dist-info")]


def test_two_versions_in_one_folder_are_told_and_the_newer_counts(tmp_path: Path) -> None:
    install(tmp_path, "torch", "2.9.0")
    install(tmp_path, "torch", "2.10.0")
    found, problems = read(tmp_path)
    assert found["torch"].version == "2.10.0"
    assert [(p.kind, p.detail) for p in problems] == [("duplicate_metadata", "2.9.0 and 2.10.0")]


def test_what_an_earlier_folder_hides_is_told(tmp_path: Path) -> None:
    install(tmp_path / "first", "numpy", "1.26")
    install(tmp_path / "second", "numpy", "2.4")
    found, problems = read(tmp_path / "first", tmp_path / "second")
    assert found["numpy"].version == "1.26"
    assert told(problems) == [("shadowed_distribution", "numpy")]


def test_what_pip_left_behind_is_told(tmp_path: Path) -> None:
    (tmp_path / "~orch-2.4.0.dist-info").mkdir()
    assert told(read(tmp_path)[1]) == [("uninstall_leftover", "~orch-2.4.0.dist-info")]


def test_damaged_side_files_cost_only_themselves(tmp_path: Path) -> None:
    info = install(tmp_path, "package")
    (info / "direct_url.json").write_text("[" * 10_000)
    (info / "entry_points.txt").write_text("no section = here\n")
    found, problems = read(tmp_path)
    assert problems == ()
    assert found["package"].entry_points == ()
    assert found["package"].editable is None


@pytest.mark.parametrize("url", ["http://[::1", "file:///a%00b", "", "//["])
def test_an_address_that_is_none_costs_only_itself(tmp_path: Path, url: str) -> None:
    info = install(tmp_path, "package")
    (info / "direct_url.json").write_text(json.dumps({"url": url, "dir_info": {"editable": True}}))
    found, _ = read(tmp_path)
    assert found["package"].version == "1.0"


def test_a_long_description_is_no_header(tmp_path: Path) -> None:
    info = install(
        tmp_path, "package", headers=["License: some", "         ", "        text", "Requires-Python: >=3.9"]
    )
    assert read(tmp_path)[0]["package"].requires_python == ">=3.9"
    (info / "METADATA").write_text((info / "METADATA").read_text() + "\nRequires-Dist: not-a-requirement\n")
    assert read(tmp_path)[0]["package"].requires == ()


def test_condas_records_are_told_by_their_names(tmp_path: Path) -> None:
    (tmp_path / "conda-meta").mkdir()
    for name in ("libstdcxx-ng-13.2.0-hc0a3c3a_7", "mpich-4.2.1-h1", "history"):
        (tmp_path / f"conda-meta/{name}.json").write_text("{}")
    assert [(p.name, p.version) for p in metadata.conda_packages(tmp_path)] == [
        ("libstdcxx-ng", "13.2.0"),
        ("mpich", "4.2.1"),
    ]


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    content=st.binary(max_size=300), name=st.sampled_from(["METADATA", "entry_points.txt", "direct_url.json", "RECORD"])
)
def test_arbitrary_bytes_in_metadata_never_crash(tmp_path: Path, content: bytes, name: str) -> None:
    info = install(tmp_path, "package")
    (info / name).write_bytes(content)
    found, _ = metadata.distributions([Folder(tmp_path, "site")])
    for distribution in found:
        metadata.record_text(distribution)


@given(st.text(max_size=200))
def test_arbitrary_old_requirements_never_crash(text: str) -> None:
    assert all(isinstance(line, str) for line in metadata.egg_requires(text))
