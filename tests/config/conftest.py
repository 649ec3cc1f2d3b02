from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from textwrap import dedent

import pytest

from toolkit.config import load
from toolkit.errors import ManyFaultsError

Write = Callable[[str], Path]
Faults = Callable[[str], list[str]]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write_file(text: str) -> Path:
        file = tmp_path / "node.yaml"
        file.write_text(dedent(text), encoding="utf-8")
        return file

    return write_file


@pytest.fixture
def faults(write: Write) -> Faults:
    """Every fault of a deployment's text as its printed line, the folder left out."""
    return partial(_faults, load.deployment, write)


@pytest.fixture
def recipe_faults(write: Write) -> Faults:
    return partial(_faults, load.recipe, write)


def _faults(read: Callable[[Path], object], write: Write, text: str) -> list[str]:
    file = write(text)
    with pytest.raises(ManyFaultsError) as caught:
        read(file)
    return [str(error).removeprefix(f"{file.parent}/") for error in caught.value.errors]
