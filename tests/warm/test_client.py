"""Servers that keep to the rules of HTTP in ways of their own, or not at all."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import aiohttp
import pytest

from toolkit.runtimes.base import HttpProbe, Probes
from toolkit.warm import Target
from toolkit.warm.client import Client, RequestFailedError

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@contextlib.asynccontextmanager
async def served(answer: Answer, http: aiohttp.ClientSession) -> AsyncIterator[Client]:
    """A client of a server that does this on each connection, then closes it."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            await answer(reader, writer)
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    yield Client(Target(f"http://{host}:{port}", Probes(loaded=None)), http)
    server.close()


async def test_a_server_may_close_a_connection_after_an_answer_without_a_word(http) -> None:
    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK)
        await writer.drain()

    async with served(once, http) as client:
        assert [await client.send(HttpProbe("/", "POST")) for _ in range(20)] == ["ok"] * 20


async def failure(answer: Answer, http: aiohttp.ClientSession) -> RequestFailedError:
    async with served(answer, http) as client:
        with pytest.raises(RequestFailedError) as caught:
            await client.send(HttpProbe("/health"))
    return caught.value


async def test_an_answer_without_end_is_not_kept(http) -> None:
    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while not writer.is_closing():
            writer.write(b"x" * 65536)
            await writer.drain()

    assert (await failure(endless, http)).reason == "GET /health: the answer is over 16.0 MiB"


async def test_who_does_not_speak_http_is_told_as_that(http) -> None:
    async def ssh(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-OpenSSH_9.6\r\n")
        await writer.drain()

    error = await failure(ssh, http)
    assert (error.reason, error.not_yet) == ("GET /health: what answers there is no HTTP", False)


async def test_a_connection_that_is_reset_may_be_of_a_server_that_begins(http) -> None:
    async def reset(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()

    error = await failure(reset, http)
    assert (error.reason, error.not_yet) == ("GET /health: the connection was closed without an answer", True)
