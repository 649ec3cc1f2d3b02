from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.errors import ToolkitError
from toolkit.store import hashes as module
from toolkit.store.hashes import fingerprint, hash_files

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
PARTS = st.dictionaries(st.text(), JSON, max_size=4)


@given(parts=PARTS)
def test_order_of_keys_does_not_count(parts: dict[str, Any]) -> None:
    backwards = dict(reversed(parts.items()))
    assert fingerprint(parts) == fingerprint(backwards)
    assert len(fingerprint(parts)) == 64


@given(one=PARTS, two=PARTS)
def test_different_parts_have_different_fingerprints(one: dict[str, Any], two: dict[str, Any]) -> None:
    if repr(one) != repr(two) and one != two:
        assert fingerprint(one) != fingerprint(two)


def test_a_number_is_not_its_text() -> None:
    assert fingerprint({"a": 1}) != fingerprint({"a": "1"})
    assert fingerprint({"a": True}) != fingerprint({"a": 1})


def test_paths_and_tuples_are_their_json_forms() -> None:
    assert fingerprint({"a": Path("/x"), "b": (1, 2)}) == fingerprint({"a": "/x", "b": [1, 2]})


@pytest.mark.parametrize("value", [{1, 2}, b"x", object(), {1: 2}])
def test_what_is_no_json_is_refused(value: object) -> None:
    with pytest.raises(TypeError):
        fingerprint({"a": value})


def test_not_a_number_is_refused() -> None:
    with pytest.raises(ValueError):
        fingerprint({"a": float("nan")})


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("a.safetensors", "b.safetensors", "config.json", "README.md"):
        (folder / name).write_text(name)
        os.utime(folder / name, (1_000_000, 1_000_000))
    return folder


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files whose content was read."""
    names: list[str] = []
    real = module.sha256_file

    def counted(path: Path) -> str:
        names.append(path.name)
        return real(path)

    monkeypatch.setattr(module, "sha256_file", counted)
    return names


def test_hashes_are_those_of_the_content(model: Path) -> None:
    hashes = hash_files(model, ["*.safetensors", "config.json"])
    assert list(hashes) == ["a.safetensors", "b.safetensors", "config.json"]
    assert hashes["config.json"] == hashlib.sha256(b"config.json").hexdigest()


def test_a_second_boot_reads_nothing(model: Path, tmp_path: Path, read: list[str]) -> None:
    cache = tmp_path / "hashes.json"
    first = hash_files(model, ["*"], cache)
    assert sorted(read) == ["README.md", "a.safetensors", "b.safetensors", "config.json"]
    read.clear()
    assert hash_files(model, ["*"], cache) == first
    assert read == []


def test_only_what_changed_is_read_again_even_with_its_old_mtime(model: Path, tmp_path: Path, read: list[str]) -> None:
    cache = tmp_path / "hashes.json"
    first = hash_files(model, ["*"], cache)
    read.clear()
    (model / "config.json").write_text("config.jsoN")
    os.utime(model / "config.json", (1_000_000, 1_000_000))
    second = hash_files(model, ["*"], cache)
    assert read == ["config.json"]
    assert {name for name in first if first[name] != second[name]} == {"config.json"}


def test_a_replaced_file_is_read_again(model: Path, tmp_path: Path) -> None:
    cache = tmp_path / "hashes.json"
    first = hash_files(model, ["*.json"], cache)
    (model / "new").write_text("CONFIG.JSON")
    os.utime(model / "new", (1_000_000, 1_000_000))
    (model / "new").replace(model / "config.json")
    assert hash_files(model, ["*.json"], cache) != first


def test_a_file_too_young_for_its_clock_is_not_remembered(model: Path, tmp_path: Path, read: list[str]) -> None:
    cache = tmp_path / "hashes.json"
    (model / "config.json").touch()
    now_ns = (model / "config.json").stat().st_mtime_ns + 1
    for _ in range(2):
        hash_files(model, ["config.json"], cache, now_ns=lambda: now_ns)
    assert read == ["config.json", "config.json"]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"schema": 1, "files": {"x": 3}}', '{"schema": 9, "files": {}}'])
def test_a_damaged_cache_remembers_nothing(model: Path, tmp_path: Path, content: str) -> None:
    cache = tmp_path / "hashes.json"
    cache.write_text(content)
    assert hash_files(model, ["*"], cache) == hash_files(model, ["*"])


def test_files_that_are_gone_leave_the_cache(model: Path, tmp_path: Path) -> None:
    cache = tmp_path / "hashes.json"
    hash_files(model, ["*"], cache)
    (model / "README.md").unlink()
    (model / "config.json").write_text("other")
    os.utime(model / "config.json", (1_000_000, 1_000_000))
    hash_files(model, ["*"], cache)
    assert "README.md" not in cache.read_text()


def test_a_linked_file_counts_as_its_target(model: Path, tmp_path: Path) -> None:
    linked = tmp_path / "snapshot"
    linked.mkdir()
    (linked / "config.json").symlink_to(model / "config.json")
    assert hash_files(linked, ["*"])["config.json"] == hash_files(model, ["config.json"])["config.json"]


def test_a_missing_folder_and_no_match_are_named(model: Path) -> None:
    with pytest.raises(ToolkitError, match="no such folder"):
        hash_files(model / "none", ["*"])
    with pytest.raises(ToolkitError, match=r"no file like \*\.bin"):
        hash_files(model, ["*.bin"])
