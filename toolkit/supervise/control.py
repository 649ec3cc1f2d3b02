"""HTTP of a running deployment: readable on loopback TCP, all of it through a Unix socket of mode 0600."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import struct
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from aiohttp import web
from aiohttp.typedefs import Middleware

from toolkit.errors import ToolkitError
from toolkit.names import suggestion
from toolkit.supervise.journal import Journal
from toolkit.supervise.metrics import CONTENT_TYPE
from toolkit.supervise.socket_path import short_path

HEARTBEAT_S = 15.0


class Controlled(Protocol):
    """What the doors show and ask of the supervisor."""

    def snapshot(self) -> dict[str, Any]: ...
    def readiness(self) -> dict[str, Any]: ...
    def metrics(self) -> bytes: ...
    def stop(self, name: str) -> None: ...
    def restart(self, name: str) -> None: ...
    def request_stop(self) -> None: ...
    async def reload(self, config: Path) -> dict[str, Any]: ...


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_UCRED = struct.Struct("iII")  # struct ucred of unix(7): pid, uid, gid


class Control:
    """Both doors. ``open`` and ``close`` once each."""

    def __init__(self, supervisor: Controlled, journal: Journal) -> None:
        self._supervisor, self._journal = supervisor, journal
        self._runners: list[web.AppRunner] = []

    async def open(self, port: int, socket_path: Path) -> int:
        """The TCP port on 127.0.0.1 (``port`` 0: a free one), once both doors are open.

        Raises: ToolkitError when the port is taken.
        """
        with bound_socket(socket_path) as unix:
            await self._serve(self._all_routes(), unix, _own_user_only)
        tcp = _loopback(port)
        await self._serve(self._readable(), tcp)
        return int(tcp.getsockname()[1])

    async def _serve(self, routes: list[web.RouteDef], at: socket.socket, *gates: Middleware) -> None:
        app = web.Application(middlewares=[*gates, _errors_as_json])
        app.add_routes(routes)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        self._runners.append(runner)
        await web.SockSite(runner, at).start()

    async def close(self) -> None:
        """Closes both doors and every stream."""
        await asyncio.gather(*(runner.cleanup() for runner in self._runners))

    def _readable(self) -> list[web.RouteDef]:
        return [
            web.get("/livez", self._livez),
            web.get("/readyz", self._readyz),
            web.get("/readyz/{service}", self._readyz_service),
            web.get("/v1/services", self._services),
            web.get("/metrics", self._metrics),
            web.get("/events", self._events),
        ]

    def _all_routes(self) -> list[web.RouteDef]:
        return [
            *self._readable(),
            web.post("/v1/down", self._down),
            web.post("/v1/reload", self._reload),
            web.post("/v1/services/{service}/stop", self._stop),
            web.post("/v1/services/{service}/restart", self._restart),
        ]

    async def _livez(self, _: web.Request) -> web.Response:
        return web.json_response({"live": True})

    async def _readyz(self, _: web.Request) -> web.Response:
        document = self._supervisor.readiness()
        return web.json_response(document, status=200 if document["ready"] else 503)

    async def _readyz_service(self, request: web.Request) -> web.Response:
        name = request.match_info["service"]
        services = self._supervisor.readiness()["services"]
        if (found := services.get(name)) is None:
            raise ToolkitError(f"no service '{name}'", hint=suggestion(name, services), code="unknown_service")
        return web.json_response(found, status=200 if found["ready"] else 503)

    async def _services(self, _: web.Request) -> web.Response:
        return web.json_response(self._supervisor.snapshot())

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=self._supervisor.metrics(), headers={"Content-Type": CONTENT_TYPE})

    async def _down(self, _: web.Request) -> web.Response:
        asyncio.get_running_loop().call_soon(self._supervisor.request_stop)  # the answer comes first
        return web.json_response({"accepted": True}, status=202)

    async def _stop(self, request: web.Request) -> web.Response:
        self._supervisor.stop(request.match_info["service"])
        return web.json_response({"accepted": True}, status=202)

    async def _restart(self, request: web.Request) -> web.Response:
        self._supervisor.restart(request.match_info["service"])
        return web.json_response({"accepted": True}, status=202)

    async def _reload(self, request: web.Request) -> web.Response:
        """``{"config": FILE}``; the answer comes when what is different has begun to be restarted."""
        changes = await self._supervisor.reload(_config_in(await request.read()))
        return web.json_response({"schema": 1, "changes": changes}, status=202)

    async def _events(self, request: web.Request) -> web.StreamResponse:
        """Server-sent events; with ``Last-Event-ID`` those since then come first, as far as they are kept."""
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"})
        with self._journal.listen() as queue:
            missed = _missed(request.headers.get("Last-Event-ID"), self._journal)
            with contextlib.suppress(ConnectionResetError):  # the reader has gone
                await response.prepare(request)
                for event in missed:
                    await response.write(_sse(event))
                while True:
                    await response.write(await _next(queue))
        return response


def _config_in(body: bytes) -> Path:
    try:
        return Path(json.loads(body)["config"])
    except (ValueError, TypeError, KeyError) as error:
        raise ToolkitError("the body names no file", hint='Send {"config": PATH}.', code="bad_request") from error


def _missed(last_id: str | None, journal: Journal) -> list[dict[str, Any]]:
    if last_id is None or not last_id.isdigit():
        return []
    return [event for event in journal.recent if event["id"] > int(last_id)]


async def _next(queue: asyncio.Queue[dict[str, Any]]) -> bytes:
    try:
        return _sse(await asyncio.wait_for(queue.get(), HEARTBEAT_S))
    except asyncio.TimeoutError:
        return b": still here\n\n"


def _sse(event: dict[str, Any]) -> bytes:
    return f"id: {event['id']}\nevent: {event['kind']}\ndata: {json.dumps(event)}\n\n".encode()


@web.middleware
async def _errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except ToolkitError as error:
        status = {"unknown_service": 404, "bad_request": 400}.get(error.code, 409)
        return _refused(error, status)


@web.middleware
async def _own_user_only(request: web.Request, handler: Handler) -> web.StreamResponse:
    """The file's mode keeps others out already; this holds when the mode or the folder was changed."""
    connection = request.get_extra_info("socket")
    if connection is None or not may_control(peer_uid(connection), os.geteuid()):
        return _refused(ToolkitError("the deployment belongs to another user", code="not_permitted"), 403)
    return await handler(request)


def _refused(error: ToolkitError, status: int) -> web.Response:
    told = {"schema": 1, "error": error.document()}
    return web.json_response(told, status=status, dumps=partial(json.dumps, default=str))


def peer_uid(connection: socket.socket) -> int:
    """The user who opened the other end of a Unix socket, as the kernel noted it then."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    return int(_UCRED.unpack(credentials)[1])


def may_control(peer: int, own: int) -> bool:
    """Whether that user may: the deployment's own, and root, whom nothing stops anyway."""
    return peer in (own, 0)


def _loopback(port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
    except OSError as error:
        listener.close()
        raise ToolkitError(
            f"the control port {port} cannot be bound: {error.strerror}",
            hint="Stop its owner, or give another 'control_port'.",
            code="port_in_use",
            resource="port",
        ) from error
    return listener


@contextmanager
def bound_socket(path: Path) -> Iterator[socket.socket]:
    """A socket at ``path`` that only its owner can reach, at no moment anybody else, whatever the umask is.

    It is bound in a folder of mode 0700, given mode 0600, and moved to its place once the context has made it listen.
    """
    with tempfile.TemporaryDirectory(prefix=".control-", dir=path.parent) as private:
        hidden = Path(private) / path.name
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with short_path(hidden) as address:
            listener.bind(address)
        hidden.chmod(0o600)
        yield listener
        hidden.replace(path)
