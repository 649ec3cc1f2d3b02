from __future__ import annotations

import errno
from pathlib import Path

import pytest

from toolkit.errors import ToolkitError
from toolkit.home import Home


def test_the_home_is_where_the_environment_says(tmp_path: Path) -> None:
    assert Home.find({"COEXIST_HOME": "/data/here"}).root == Path("/data/here")
    assert Home.find({"XDG_DATA_HOME": "/xdg"}).root == Path("/xdg/coexist")
    assert Home.find({"COEXIST_HOME": "/here", "COEXIST_CACHE": "/local"}).cache("d", "s") == Path("/local/d/s")


def test_a_home_is_made_and_nothing_is_left_in_it(tmp_path: Path) -> None:
    home = Home(tmp_path / "deep" / "home", tmp_path / "caches")
    assert home.prepared() is home
    assert home.prepared().root.is_dir()
    assert list(home.root.iterdir()) == []
    assert home.caches is not None
    assert home.caches.is_dir()


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ("{file}", "is no folder"),
        ("{file}/home", "a file is in its way"),
        ("/proc/nope", "takes no new files or folders"),
        ("/proc", "takes no new files or folders"),
    ],
)
@pytest.mark.parametrize("variable", ["COEXIST_HOME", "COEXIST_CACHE"])
def test_a_place_that_keeps_nothing_is_told_with_the_variable_to_set(tmp_path, place, reason, variable):
    (tmp_path / "file").touch()
    chosen = place.format(file=tmp_path / "file")
    home = Home.find({"COEXIST_HOME": str(tmp_path / "home"), variable: chosen})
    with pytest.raises(ToolkitError, match=reason) as refused:
        home.prepared()
    assert (refused.value.where, refused.value.code) == (chosen, "not_writable")
    assert variable in (refused.value.hint or "")


@pytest.mark.parametrize(
    ("number", "reason", "code"),
    [
        (errno.EROFS, "the file system is read-only", "not_writable"),
        (errno.EACCES, "permission is denied", "not_writable"),
        (errno.ENOSPC, "no space is left", "no_space"),
    ],
)
def test_a_folder_that_is_there_but_takes_no_file_is_told_too(tmp_path, monkeypatch, number, reason, code):
    def refuse(**_: object) -> None:
        raise OSError(number, "no")

    monkeypatch.setattr("toolkit.files.tempfile.TemporaryFile", refuse)
    with pytest.raises(ToolkitError, match=reason) as refused:
        Home(tmp_path).prepared()
    assert refused.value.code == code


def test_a_user_without_a_home_directory_is_told_what_to_set():
    with pytest.raises(ToolkitError, match="home directory is not known") as refused:
        Home.find({"XDG_DATA_HOME": "~nobody-of-this-name/data"})
    assert "COEXIST_HOME" in (refused.value.hint or "")
