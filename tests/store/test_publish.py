from __future__ import annotations

import errno
from pathlib import Path

import pytest

from tests.store.conftest import names
from toolkit.store import publish
from toolkit.store.publish import exchange


@pytest.mark.parametrize("kernel_can", [True, False])
def test_exchange_swaps_two_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernel_can: bool) -> None:
    if not kernel_can:
        monkeypatch.setattr(publish, "_renameat2_exchange", lambda _new, _old: (-1, errno.EINVAL))
    new, old = tmp_path / "new", tmp_path / "old"
    for folder in (new, old):
        folder.mkdir()
        (folder / folder.name).touch()
    exchange(new, old)
    assert names(old) == ["new"]
    assert names(new) == ["old"]
    assert names(tmp_path) == ["new", "old"]


def test_exchange_with_nothing_there_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    with pytest.raises(FileNotFoundError):
        exchange(tmp_path / "new", tmp_path / "old")
