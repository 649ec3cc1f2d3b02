"""The HTTP side that both built-in servers share: stage, warm-up, registration, draining, health, gate and errors."""

from __future__ import annotations

import asyncio
import errno
import gc
import hmac
import logging
import os
import signal
import socket
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal, Protocol

from aiohttp import web

from toolkit.errors import ToolkitError
from toolkit.serve import compiles, openapi
from toolkit.serve.api import MAX_BODY_BYTES, ApiError, from_http, read_object
from toolkit.serve.connections import Connections, NoStrangers, keep_sweeping, raise_descriptor_limit
from toolkit.serve.metrics import Metrics
from toolkit.serve.openapi import TOKEN_HEADER, Operation
from toolkit.serve.status import Status
from toolkit.serve.worker import Worker

TOKEN_VARIABLE = "COEXIST_TOKEN"  # noqa: S105 - a variable's name
CLIENT_GONE = 499  # nginx's number for a client that closed the connection
RETRY_AFTER = {"Retry-After": "1"}
# The worker's step under way may take this long to end at a stop; afterwards the process leaves without it.
STEP_GRACE_S = 1.0

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
WarmupMode = Literal["full", "single"]
log = logging.getLogger("coexist.serve")


class Backend(Protocol):
    """What one server adds to the shared routes. All but ``model`` and ``attention`` is used after loading only."""

    def model(self) -> dict[str, Any]:
        """What ``/v1/models`` says besides the name."""

    def attention(self) -> dict[str, str]:
        """Labels of the attention path; ``used`` is the path that ran."""

    def warmup_keys(self, mode: WarmupMode) -> list[str]:
        """Names of the shapes to run."""

    def run_key(self, key: str) -> None:
        """Runs one shape. Called in the worker's thread."""

    async def probe(self) -> None:
        """Returns after one token or one text has run."""

    def inference(self) -> Mapping[str, Handler]:
        """Paths that are POSTed to, and who answers them."""

    def operations(self) -> Sequence[Operation]:
        """The description of these paths, with the model's limits once it is loaded."""


class Server:
    """One built-in server: its state, its worker, and the routes of the contract with coexist."""

    def __init__(self, model_name: str, status: Status, *, backend: Backend, worker: Worker, metrics: Metrics) -> None:
        self.model_name = model_name
        self.status = status
        self.metrics = metrics
        self._backend = backend
        self._worker = worker
        self._token = os.environ.get(TOKEN_VARIABLE) or None
        self._created_s = int(time.time())
        self._inference = dict(backend.inference())
        self._done: dict[str, None] = {}
        self.connections: Connections[web.RequestHandler] = Connections()

    def app(self) -> web.Application:
        """The application: routes, gate and error shapes."""
        app = web.Application(middlewares=[self._errors, self._gate], client_max_size=MAX_BODY_BYTES)
        app.router.add_get("/health", self._health)
        app.router.add_get("/health_generate", self._health_generate)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/openapi.json", self._openapi)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/v1/stage", self._stage)
        app.router.add_get("/v1/warmup/keys", self._warmup_keys)
        app.router.add_post("/v1/warmup", self._warmup)
        app.router.add_post("/v1/register", self._register)
        app.router.add_post("/v1/drain", self._drain)
        for path, handler in self._inference.items():
            app.router.add_post(path, handler)
        return app

    # Middlewares: the first is the outermost.

    @web.middleware
    async def _errors(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        status = CLIENT_GONE
        try:
            with self.connections.busy(request.protocol):
                response = await self._answer(request, handler)
            status = response.status
        finally:
            if request.path in self._inference:
                self.metrics.requests.labels(request.path, str(status)).inc()
        return response

    async def _answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except ApiError as e:
            if e.status >= 500 and e.status != 503:
                log.error("%s %s: %s", request.method, request.path, e.message)
            return e.response()
        except web.HTTPException as e:
            return from_http(e).response()
        except ConnectionError:
            # The client went away in the middle of a stream: nobody is left to be answered.
            return web.Response(status=CLIENT_GONE)
        except Exception:
            log.exception("%s %s: unexpected error", request.method, request.path)
            return ApiError(500, "unexpected error; the server's log has it").response()

    @web.middleware
    async def _gate(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path != "/health_generate" and request.path not in self._inference:
            return await handler(request)
        stage = self.status.stage
        if stage == "serving" or (stage == "loaded" and self._has_token(request)):
            with self.status.request():
                return await handler(request)
        raise ApiError(503, f"not serving: the server's stage is '{stage}'", code=stage, headers=RETRY_AFTER)

    def _has_token(self, request: web.Request) -> bool:
        given = request.headers.get(TOKEN_HEADER, "").encode("utf-8", "surrogateescape")
        return self._token is not None and hmac.compare_digest(given, self._token.encode())

    def _need_token(self, request: web.Request) -> None:
        if not self._has_token(request):
            raise ApiError(401, f"this request needs the attempt's token in the header {TOKEN_HEADER}")

    def _need_loaded(self) -> None:
        if self.status.stage == "preload":
            raise ApiError(503, "still loading", code="preload", headers=RETRY_AFTER)

    # Handlers.

    async def _health(self, _: web.Request) -> web.Response:
        stage = self.status.stage
        return web.json_response({"stage": stage}, status=200 if stage == "serving" else 503)

    async def _health_generate(self, _: web.Request) -> web.Response:
        try:
            await self._backend.probe()
        except ApiError as e:
            status = 429 if e.status == 429 else 503  # a full queue is no fault
            raise ApiError(status, e.message, code=e.code, headers=RETRY_AFTER) from e
        return web.json_response({"stage": self.status.stage})

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=self.metrics.text(), headers={"Content-Type": "text/plain; version=0.0.4"})

    async def _openapi(self, _: web.Request) -> web.Response:
        operations = (*openapi.SHARED, *self._backend.operations())
        return web.json_response(openapi.document(f"coexist: {self.model_name}", operations))

    async def _models(self, _: web.Request) -> web.Response:
        model = {"id": self.model_name, "object": "model", "created": self._created_s, "owned_by": "coexist"}
        return web.json_response({"object": "list", "data": [{**model, **self._backend.model()}]})

    async def _stage(self, _: web.Request) -> web.Response:
        return web.json_response(self.status.document(compiles.count(), self._backend.attention().get("used")))

    async def _warmup_keys(self, _: web.Request) -> web.Response:
        self._need_loaded()
        keys, compiled = self._backend.warmup_keys("full"), compiles.compiled_keys()
        return web.json_response({"keys": keys, "done": list(self._done), "compiled": compiled})

    async def _warmup(self, request: web.Request) -> web.Response:
        self._need_token(request)
        self._need_loaded()
        body = await read_object(request, openapi.WARMUP_BODY, empty_is_object=True)
        mode: WarmupMode = body.get("mode") or "full"
        start_s = time.monotonic()
        keys = self._backend.warmup_keys(mode)
        for key in keys:
            await self._run_key(key)
        seconds = round(time.monotonic() - start_s, 4)
        log.info("warm-up %s ran %d shapes in %.3f s", mode, len(keys), seconds)
        return web.json_response({"keys": keys, "ran": len(keys), "seconds": seconds})

    async def _run_key(self, key: str) -> None:
        try:
            await asyncio.wrap_future(self._worker.job(lambda: self._backend.run_key(key)))
        except Exception as e:
            log.exception("warm-up of %s failed", key)
            raise ApiError(500, f"warm-up of {key} failed: {e}") from e
        self._done[key] = None

    async def _register(self, request: web.Request) -> web.Response:
        self._need_token(request)
        self._need_loaded()
        if not self.status.move("loaded", "serving") and self.status.stage != "serving":
            raise ApiError(409, "the server is draining; it takes no new requests", code="draining")
        return web.json_response({"stage": self.status.stage})

    async def _drain(self, request: web.Request) -> web.Response:
        self._need_token(request)
        self.status.drain()
        await self.status.idle()
        return web.json_response({"stage": self.status.stage, "in_flight": self.status.in_flight})


def bind(host: str, port: int) -> socket.socket:
    """A listening socket.

    Raises: ToolkitError when the address cannot be had.
    """
    where = f"{host}:{port}"
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=1024)
    except OSError as e:
        if e.errno == errno.EADDRINUSE:
            raise ToolkitError(
                "the port is in use", where, "Stop the program that holds it (see 'ss -ltnp') or choose another --port."
            ) from e
        raise ToolkitError(f"cannot listen there: {e.strerror or e}", where, "Check --host and --port.") from e


def main(host: str, port: int, make: Callable[[Status, Ended], tuple[Server, Worker]]) -> int:
    """The process's exit status: 0 after draining, 1 when a person must change something."""
    log_to_stderr()
    try:
        listener = bind(host, port)
    except ToolkitError as e:
        log.error("error: %s", e)
        return e.exit_code
    # Importing makes many objects and no garbage; ``loaded`` turns collection on again.
    gc.disable()
    raise_descriptor_limit()
    ended = Ended()
    server, worker = make(Status(), ended)
    return run(server, worker, ended, listener)


def loaded(status: Status) -> None:
    """The stage is loaded; garbage is collected again, what loading made left out."""
    status.move("preload", "loaded")
    gc.enable()
    gc.freeze()


def run(server: Server, worker: Worker, ended: Ended, listener: socket.socket) -> int:
    """The process's exit status, once the server was told to stop and has drained, or could not load."""
    code = asyncio.run(_run(server, worker, ended, listener))
    worker.stop(STEP_GRACE_S)
    if worker.alive:
        # A thread inside native code makes the interpreter's own way out unsafe.
        logging.shutdown()
        os._exit(code)
    return code


class Ended:
    """Carries the end of the worker's thread into the event loop."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._future: asyncio.Future[int] | None = None

    def attach(self) -> asyncio.Future[int]:
        """A future of the exit status, in the running loop."""
        self._loop = asyncio.get_running_loop()
        self._future = self._loop.create_future()
        return self._future

    def set(self, code: int) -> None:
        """Ends the server with this exit status, the first time; for the event loop."""
        if self._future is not None and not self._future.done():
            self._future.set_result(code)

    def worker_ended(self, error: BaseException | None) -> None:
        """Logs what ended the worker. Called in its thread."""
        if error is None:
            return
        if isinstance(error, ToolkitError):
            log.error("error: %s", error)
        else:
            log.error("error: the inference thread ended", exc_info=error)
        code = error.exit_code if isinstance(error, ToolkitError) else 3
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self.set, code)


async def _run(server: Server, worker: Worker, ended: Ended, listener: socket.socket) -> int:
    future = ended.attach()
    _handle_signals(server.status, ended)
    runner = web.AppRunner(server.app(), handler_cancellation=True, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    await web.SockSite(runner, listener).start()
    sweeper = asyncio.create_task(keep_sweeping(server.connections, runner))
    host, port = listener.getsockname()[:2]
    log.info("listening on %s:%d", host, port)
    worker.start()
    code = await future
    sweeper.cancel()
    await runner.cleanup()
    log.info("stopped")
    return code


def _handle_signals(status: Status, ended: Ended) -> None:
    loop = asyncio.get_running_loop()
    drains: list[asyncio.Task[None]] = []

    async def drain(name: str) -> None:
        log.info("%s: draining %d requests", name, status.in_flight)
        status.drain()
        await status.idle()
        ended.set(0)

    def on_signal(number: signal.Signals) -> None:
        if drains:
            log.info("second %s: leaving at once", number.name)
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        drains.append(loop.create_task(drain(number.name)))

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)


def log_to_stderr() -> None:
    """Lines of this room go to standard error from now on."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False
    of_aiohttp = logging.getLogger("aiohttp.server")
    of_aiohttp.addHandler(handler)
    of_aiohttp.addFilter(NoStrangers())
    of_aiohttp.propagate = False
