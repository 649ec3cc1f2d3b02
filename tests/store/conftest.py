from __future__ import annotations

from pathlib import Path

import pytest

from toolkit.store import Store

FINGERPRINT = "ab" * 32
OTHER = "cd" * 32


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "home")


def build_two_files(folder: Path) -> dict[str, object]:
    (folder / "decode.pt2").write_bytes(b"decode" * 100)
    (folder / "tokenizer").mkdir()
    (folder / "tokenizer" / "vocab.json").write_text('{"a": 1}')
    return {"dtype": "float32"}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())
