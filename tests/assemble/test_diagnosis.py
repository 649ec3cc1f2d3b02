from __future__ import annotations

import asyncio
from typing import Any

from toolkit.assemble import diagnosis
from toolkit.diagnose import catalogue
from toolkit.errors import ToolkitError


class Starting:
    """A supervisor that becomes ready, or never."""

    def __init__(self, fails: bool = False) -> None:
        self.ready, self.fails = asyncio.Event(), fails

    async def wait_ready(self) -> None:
        await self.ready.wait()
        if self.fails:
            raise ToolkitError("a service failed")


def is_read() -> bool:
    return catalogue.load.cache_info().currsize == 1


async def read(starting: Any) -> bool:
    """Whether the patterns were read after its start, and not before."""
    catalogue.load.cache_clear()
    async with diagnosis.read_ahead(starting):
        await asyncio.sleep(0)
        before = is_read()
        starting.ready.set()
        while not is_read():
            await asyncio.sleep(0.005)
    return not before


async def test_the_patterns_are_read_once_all_is_ready() -> None:
    assert await read(Starting())


async def test_they_are_read_when_a_service_failed_too() -> None:
    assert await read(Starting(fails=True))


async def test_a_start_that_ends_early_reads_nothing() -> None:
    catalogue.load.cache_clear()
    async with diagnosis.read_ahead(Starting()):  # type: ignore[arg-type]
        await asyncio.sleep(0)
    assert not is_read()
