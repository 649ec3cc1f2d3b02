from __future__ import annotations

import os
from pathlib import Path

import pytest

from toolkit.errors import ToolkitError
from toolkit.reserve.runtime_dir import runtime_dir

ME = os.geteuid()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("run", "tmp"):
        (tmp_path / name).mkdir()
    return tmp_path


def find(root: Path, environ: dict[str, str] | None = None, uid: int | None = None) -> Path:
    return runtime_dir(environ or {}, ME if uid is None else uid, root)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_a_chosen_folder_wins(root: Path) -> None:
    chosen = root / "deep" / "chosen"
    assert find(root, {"COEXIST_RUNTIME_DIR": str(chosen), "XDG_RUNTIME_DIR": str(root)}) == chosen
    assert mode(chosen) == 0o700


def test_root_has_one_ledger_whatever_the_shell_says(root: Path) -> None:
    found = find(root, {"XDG_RUNTIME_DIR": str(root / "tmp")}, uid=0)
    assert found == root / "run/coexist"
    assert mode(found) == 0o755 & ~_umask()


def test_a_user_has_the_session_folder_even_where_the_variable_is_unset(root: Path, monkeypatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_args: False)
    session = root / f"run/user/{ME}"
    session.mkdir(parents=True)
    assert find(root) == session / "coexist"
    assert find(root, {"XDG_RUNTIME_DIR": str(session)}) == session / "coexist"
    assert find(root, {"XDG_RUNTIME_DIR": str(root / "gone")}) == session / "coexist"


def test_without_a_session_it_is_a_private_folder_in_tmp(root: Path, monkeypatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_args: False)
    found = find(root)
    assert found == root / f"tmp/coexist-{ME}"
    assert mode(found) == 0o700
    assert find(root) == found


def test_a_planted_folder_is_refused(root: Path, monkeypatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_args: False)
    place = root / f"tmp/coexist-{ME}"
    place.symlink_to(root / "run")
    with pytest.raises(ToolkitError, match="symbolic link"):
        find(root)
    place.unlink()
    place.write_text("")
    with pytest.raises(ToolkitError, match="not a folder"):
        find(root)
    place.unlink()
    place.mkdir()
    place.chmod(0o770)
    with pytest.raises(ToolkitError, match=r"written by others.*COEXIST_RUNTIME_DIR"):
        find(root)


def test_a_folder_of_another_user_is_refused(root: Path) -> None:
    stranger = ME + 1
    (root / f"tmp/coexist-{stranger}").mkdir(mode=0o700)
    with pytest.raises(ToolkitError, match=f"belongs to user {ME}, not to user {stranger}"):
        find(root, uid=stranger)


def test_a_chosen_folder_may_be_a_groups_but_not_everybodys(root: Path) -> None:
    chosen = root / "shared"
    chosen.mkdir()
    chosen.chmod(0o770)
    assert find(root, {"COEXIST_RUNTIME_DIR": str(chosen)}) == chosen
    chosen.chmod(0o777)
    with pytest.raises(ToolkitError, match="written by others"):
        find(root, {"COEXIST_RUNTIME_DIR": str(chosen)})


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
