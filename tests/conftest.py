from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess

import pytest


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
