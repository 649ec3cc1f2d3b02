from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from toolkit.store import Store

FINGERPRINT = "ab" * 32
OTHER = "cd" * 32


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "home")


@pytest.fixture
def spawn() -> Iterator[Callable[..., BaseProcess]]:
    """Starts a function in a real child process; every child is gone after the test."""
    children = []
    context = multiprocessing.get_context("fork")

    def start(function: Callable[..., object], *args: object) -> BaseProcess:
        child = context.Process(target=function, args=args)
        child.start()
        children.append(child)
        return child

    yield start
    for child in children:
        if child.is_alive():
            child.kill()
        child.join()


def build_two_files(folder: Path) -> dict[str, object]:
    (folder / "decode.pt2").write_bytes(b"decode" * 100)
    (folder / "tokenizer").mkdir()
    (folder / "tokenizer" / "vocab.json").write_text('{"a": 1}')
    return {"dtype": "float32"}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())
