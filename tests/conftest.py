from __future__ import annotations

import gc
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess

import hypothesis
import pytest

# Where no bytecode may be written, each process of these tests would compile the whole package anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# The same cases in each run; new ones are looked for with --hypothesis-profile=explore. A busy machine is no failure.
hypothesis.settings.register_profile("same", derandomize=True, deadline=None)
hypothesis.settings.register_profile("explore", derandomize=False, deadline=None)
hypothesis.settings.load_profile("same")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What loads models comes last: each child that is forked by a process which has costs it ten milliseconds more."""
    items.sort(key=lambda item: item.path.parent.name == "serve")


def pytest_collection_finish() -> None:
    """What was imported and collected stays; the collector need not walk through it again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _own_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test sees reservations or engines of this machine or of another run, and scratch files are the run's."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("COEXIST_HOME", "COEXIST_RUNTIME_DIR", "TMPDIR"):
            patch.setenv(name, str(tmp_path_factory.mktemp(name)))
        patch.setattr(tempfile, "tempdir", None)
        patch.delenv("COEXIST_CACHE", raising=False)
        yield


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
