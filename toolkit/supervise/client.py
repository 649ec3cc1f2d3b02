"""The command line's side of a running deployment: plain calls through its Unix socket."""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from toolkit.errors import ToolkitError
from toolkit.supervise.socket_path import short_path
from toolkit.supervise.state import StateFolder

TIMEOUT_S = 10.0
_POLL_S = 0.02


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout_s: float | None) -> None:
        super().__init__("localhost")
        self.timeout = timeout_s
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        with short_path(self._path) as address:
            self.sock.connect(address)


def status(state_dir: Path) -> dict[str, Any]:
    """The status document. Raises: ToolkitError when nothing runs."""
    return _ask(state_dir, "GET", "/v1/services")


def stop(state_dir: Path, service: str) -> None:
    """Asks for a stop of one service; returns at once. Raises: ToolkitError."""
    _ask(state_dir, "POST", f"/v1/services/{quote(service, safe='')}/stop")


def restart(state_dir: Path, service: str) -> None:
    """Asks for a new attempt of one service; returns at once. Raises: ToolkitError."""
    _ask(state_dir, "POST", f"/v1/services/{quote(service, safe='')}/restart")


def down(state_dir: Path, timeout_s: float | None = 120.0) -> None:
    """Stops the deployment; returns when nothing of it is left.

    Raises: ToolkitError when nothing runs, or it is still there after ``timeout_s``.
    """
    folder = StateFolder(state_dir)
    owner = folder.owner()
    _ask(state_dir, "POST", "/v1/down")
    deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
    while owner is not None and owner.alive and folder.owner() == owner:
        if deadline_s is not None and time.monotonic() > deadline_s:
            raise ToolkitError(
                f"deployment '{owner.deployment}' still stops after {timeout_s:g} s",
                str(state_dir),
                "See 'coexist status'.",
                code="still_stopping",
            )
        time.sleep(_POLL_S)


def events(state_dir: Path, since_id: int | None = None) -> Iterator[dict[str, Any]]:
    """Events as they happen, until the deployment ends; with ``since_id`` those after it first."""
    headers = {} if since_id is None else {"Last-Event-ID": str(since_id)}
    connection, response = _send(state_dir, "GET", "/events", None, headers)
    try:
        for line in response:
            if line.startswith(b"data: "):
                yield json.loads(line[len(b"data: ") :])
    except (http.client.HTTPException, OSError):
        return  # the deployment ended in the middle of a sentence
    finally:
        connection.close()


def _ask(state_dir: Path, method: str, path: str) -> dict[str, Any]:
    connection, response = _send(state_dir, method, path, TIMEOUT_S, {})
    try:
        document: dict[str, Any] = json.loads(response.read())
    finally:
        connection.close()
    if "error" in document:
        told = document["error"]
        raise ToolkitError(told["what"], told["where"], told["hint"], code=told["code"])
    return document


def _send(
    state_dir: Path, method: str, path: str, timeout_s: float | None, headers: dict[str, str]
) -> tuple[_UnixConnection, http.client.HTTPResponse]:
    folder = StateFolder(state_dir)
    connection = _UnixConnection(folder.socket, timeout_s)
    try:
        connection.request(method, path, headers=headers)
        return connection, connection.getresponse()
    except TimeoutError:
        raise _no_answer(folder) from None
    except OSError as error:
        raise _not_running(folder, error) from error


def _no_answer(folder: StateFolder) -> ToolkitError:
    owner = folder.owner()
    return ToolkitError(
        f"the supervisor{f' (pid {owner.pid})' if owner else ''} does not answer",
        str(folder.path),
        "If it hangs, end it: its guardian takes its services down.",
        code="no_answer",
    )


def _not_running(folder: StateFolder, error: OSError) -> ToolkitError:
    if isinstance(error, PermissionError):
        return ToolkitError("the deployment belongs to another user", str(folder.path), code="not_permitted")
    owner = folder.owner()
    name = owner.deployment if owner else folder.path.name
    died = f": its supervisor (pid {owner.pid}) died without tidying up" if owner and not owner.alive else ""
    return ToolkitError(
        f"deployment '{name}' is not running{died}",
        str(folder.path),
        "Start it with 'coexist up CONFIG'.",
        code="not_running",
    )
