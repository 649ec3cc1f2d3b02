"""The command line's side of a running deployment: plain calls through its Unix socket."""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal
from urllib.parse import quote

from toolkit import errors, processes
from toolkit.errors import NotReadyInTimeError, ToolkitError
from toolkit.home import Home
from toolkit.names import did_you_mean
from toolkit.supervise import guardian, log_reader, process, starting
from toolkit.supervise.groups import Groups
from toolkit.supervise.guard import cookie_prefix
from toolkit.supervise.socket_path import short_path
from toolkit.supervise.starting import Start
from toolkit.supervise.state import Owner, StateFolder

TIMEOUT_S = 10.0
_POLL_S = 0.02


@dataclass(frozen=True)
class Running:
    """A deployment as the command line speaks to it. Every method raises ToolkitError when it does not run.

    One that still starts, and has no supervisor yet, can be looked at and taken down.
    """

    deployment: str
    state_dir: Path

    def status(self) -> dict[str, Any]:
        """The status document."""
        return status(self.state_dir)

    def follow(self) -> Iterator[dict[str, Any]]:
        """The status document now and after every change, until the deployment ends."""
        yield from _followed_start(self.state_dir)
        yield self.status()
        with contextlib.suppress(ToolkitError):  # it ended
            for _ in events(self.state_dir):
                yield self.status()

    def act(self, action: Literal["stop", "restart"], service: str) -> None:
        """Asks for a stop or a new attempt of one service; returns at once."""
        {"stop": stop, "restart": restart}[action](self.state_dir, service)

    def down(self, timeout_s: float | None = 120.0) -> None:
        """Returns when nothing of the deployment is left."""
        down(self.state_dir, timeout_s)


def known_deployments(states: Path | None = None) -> list[str]:
    """Deployments that have a state folder, running or not."""
    folder = states or Home.find().states
    return sorted({path.parent.name for name in ("logs", starting.FILE) for path in folder.glob(f"*/{name}")})


def running_deployments(states: Path | None = None) -> list[str]:
    """Deployments whose supervisor lives, or that are about to have one."""
    folder = states or Home.find().states
    return [name for name in known_deployments(folder) if _is_up(folder / name)]


def _is_up(state_dir: Path) -> bool:
    return StateFolder(state_dir).is_running() or starting.read(state_dir) is not None


def all_running(states: Path | None = None) -> list[Running]:
    """Every deployment that runs or starts."""
    folder = states or Home.find().states
    return [Running(name, folder / name) for name in running_deployments(folder)]


def known_services(deployment: str | None = None, states: Path | None = None) -> list[str]:
    """Services of the deployment (None: of the one that runs); none when it is not clear which."""
    folder = states or Home.find().states
    running = running_deployments(folder)
    name = deployment or (running[0] if len(running) == 1 else None)
    document = StateFolder(folder / name).status() if name else None
    return [service["name"] for service in document["services"]] if document else []


def find(deployment: str | None = None, states: Path | None = None) -> Running:
    """The deployment of this name, or the only one that runs.

    Raises: ToolkitError when none of the name is known, none runs, or several do.
    """
    folder = states or Home.find().states
    known, running = known_deployments(folder), running_deployments(folder)
    if deployment is not None:
        if deployment not in known:
            raise _unknown_deployment(deployment, known)
        return Running(deployment, folder / deployment)
    if len(running) == 1:
        return Running(running[0], folder / running[0])
    if running:
        what, hint = f"several deployments run: {', '.join(running)}", "Say which with '--deployment NAME'."
        raise ToolkitError(what, hint=hint, code="several_running", deployments=running)
    died = [name for name in known if StateFolder(folder / name).owner() is not None]
    if len(died) == 1:  # its own error says how it ended
        return Running(died[0], folder / died[0])
    hint = f"Start one with 'coexist up CONFIG'. Looked in {folder}; COEXIST_HOME says where."
    raise ToolkitError("no deployment is running", hint=hint, code="not_running")


def logs(
    deployment: str | None,
    service: str | None,
    *,
    follow: bool = False,
    all_runs: bool = False,
    newest: int | None = None,
    states: Path | None = None,
) -> Iterator[log_reader.Entry]:
    """Lines of all services or of one, in order of time; of a deployment that has ended too.

    Those of its current or last run; ``all_runs``: all that are kept. ``newest``: only so many of them.

    Raises: ToolkitError when there is no such deployment or service.
    """
    found = StateFolder((states or Home.find().states) / _logged(deployment, states))
    paths = {path.stem: path for path in sorted(found.logs.glob("*.log"))}
    if start := _start(found.path):
        if not paths and not follow:
            _refuse_starting(found.path)
        paths |= {each["name"]: found.log(each["name"]) for each in start.status["services"]}
    if service is not None:
        if service not in paths:
            raise _unknown_service(service, found, list(paths))
        paths = {service: paths[service]}
    if follow:
        return log_reader.follow(paths, lambda: _is_up(found.path), all_runs=all_runs, newest=newest)
    return log_reader.read(paths, all_runs, newest)


def _logged(deployment: str | None, states: Path | None) -> str:
    """The deployment whose logs are meant: as named, the one that runs, or the one that ran last."""
    folder = states or Home.find().states
    known, running = known_deployments(folder), running_deployments(folder)
    ran = [name for name in known if (folder / name / "logs").is_dir()]  # a start that was killed has none
    if deployment is None and not running and ran:
        return max(ran, key=lambda name: (folder / name / "logs").stat().st_mtime)
    return find(deployment, folder).deployment


def _unknown_deployment(name: str, known: list[str]) -> ToolkitError:
    hint = did_you_mean(name, known) or "Start it with 'coexist up CONFIG'."
    return ToolkitError(f"deployment '{name}' is not running", hint=hint, code="not_running")


def _unknown_service(name: str, folder: StateFolder, known: list[str]) -> ToolkitError:
    hint = did_you_mean(name, known) or f"There are logs of: {', '.join(known) or 'none'}."
    return ToolkitError(f"no log of a service '{name}'", str(folder.logs), hint, code="unknown_service")


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
    if start := _start(state_dir):
        return start.document(time.monotonic())
    return _ask(state_dir, "GET", "/v1/services")


def _start(state_dir: Path) -> Start | None:
    """The start that has not come to a supervisor yet."""
    return None if StateFolder(state_dir).is_running() else starting.read(state_dir)


def _followed_start(state_dir: Path) -> Iterator[dict[str, Any]]:
    """The status document at every step of a start that goes on."""
    told = None
    while start := _start(state_dir):
        if start.step != told:
            told = start.step
            yield start.document(time.monotonic())
        time.sleep(_POLL_S)


def _refuse_starting(state_dir: Path) -> None:
    """Raises ToolkitError when nothing can be asked of a service yet."""
    if start := _start(state_dir):
        raise starting.already(start, state_dir, time.monotonic())


def wait_ready(state_dir: Path, timeout_s: float | None = None) -> dict[str, Any]:
    """The status document once all is ready.

    Raises: NotReadyInTimeError; ToolkitError when a service failed for good, or the deployment ended.
    """
    deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
    while not (document := _last_status(state_dir))["ready"]:
        if failed := [each for each in document["services"] if each["state"] == "FAILED"]:
            raise _failed(failed[0], document)
        if deadline_s is not None and time.monotonic() > deadline_s:
            states = "; ".join(f"'{each['name']}' is in {each['state']}" for each in document["services"])
            what, hint = f"not ready after {timeout_s:g} s: {states}", "It goes on: see 'coexist status'."
            raise NotReadyInTimeError(what, str(state_dir), hint, code="not_ready", status=document)
        time.sleep(_POLL_S)
    return document


def _last_status(state_dir: Path) -> dict[str, Any]:
    """The status; of a deployment that has just ended because a service failed, the last one."""
    try:
        return status(state_dir)
    except ToolkitError:
        document = StateFolder(state_dir).status()
        if document is None or not any(each["state"] == "FAILED" for each in document["services"]):
            raise
        return {**document, "ready": False}


def _failed(service: Mapping[str, Any], document: dict[str, Any]) -> ToolkitError:
    name, failure = service["name"], service["last_failure"] or {}
    return ToolkitError(
        f"'{name}' failed: {failure.get('summary') or 'it failed'}",
        None,
        failure.get("advice") or f"'coexist logs {name}' shows its output.",
        code=failure.get("class") or "service_failed",
        services=[name],
        status=document,
    )


def stop(state_dir: Path, service: str) -> None:
    """Asks for a stop of one service; returns at once. Raises: ToolkitError."""
    _refuse_starting(state_dir)
    _ask(state_dir, "POST", f"/v1/services/{quote(service, safe='')}/stop")


def restart(state_dir: Path, service: str) -> None:
    """Asks for a new attempt of one service; returns at once. Raises: ToolkitError."""
    _refuse_starting(state_dir)
    _ask(state_dir, "POST", f"/v1/services/{quote(service, safe='')}/restart")


def reload(state_dir: Path, config: Path) -> dict[str, Any]:
    """Makes the deployment that runs follow another file; what was different. Blocks while it is planned.

    Raises: ToolkitError when nothing runs, or the supervisor refuses the file.
    """
    answer = _ask(state_dir, "POST", "/v1/reload", {"config": str(config.absolute())}, timeout_s=None)
    found: dict[str, Any] = answer["changes"]
    return found


def down(state_dir: Path, timeout_s: float | None = 120.0) -> None:
    """Stops the deployment; returns when nothing of it is left. What outlived its supervisor is killed.

    A start that goes on is interrupted, as Ctrl-C would.

    Raises: ToolkitError when nothing runs, or it is still there after ``timeout_s``.
    """
    folder = StateFolder(state_dir)
    if start := _start(state_dir):
        _interrupt(start, state_dir, timeout_s)
    owner = folder.owner()
    if owner is not None and not owner.alive and owner.keeps:
        kill_left(folder, owner)
    elif start is None:
        _end(folder, owner, timeout_s)


def _end(folder: StateFolder, owner: Owner | None, timeout_s: float | None) -> None:
    """What the supervisor runs has ended, and it too."""
    _ask(folder.path, "POST", "/v1/down")
    _wait_while(lambda: owner is not None and owner.alive and folder.owner() == owner, folder.path, timeout_s)


def _interrupt(start: Start, state_dir: Path, timeout_s: float | None) -> None:
    """The process that prepared the start has ended, and what it built halfway is gone."""
    process.send([start.identity], signal.SIGTERM)
    _wait_while(lambda: processes.is_alive(start.process) is True, state_dir, timeout_s)


def _wait_while(holds: Callable[[], bool], state_dir: Path, timeout_s: float | None) -> None:
    deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
    while holds():
        if deadline_s is not None and time.monotonic() > deadline_s:
            what = f"deployment '{state_dir.name}' still stops after {timeout_s:g} s"
            raise ToolkitError(what, str(state_dir), "See 'coexist status'.", code="still_stopping")
        time.sleep(_POLL_S)


def kill_left(folder: StateFolder, owner: Owner) -> None:
    """Nothing of a deployment whose supervisor died is left, and its folder is tidy.

    Raises: ToolkitError when another supervisor has just taken it.
    """
    folder.open(owner.deployment)
    try:
        guardian.kill_all(cookie_prefix(owner.cookie).encode(), group=owner.group)
        folder.records.remove_all()
        if groups := Groups.left(owner.group, owner.cookie):
            groups.close()
    finally:
        folder.close()


def events(state_dir: Path, since_id: int | None = None) -> Iterator[dict[str, Any]]:
    """Events as they happen, until the deployment ends; with ``since_id`` those after it first."""
    headers = {} if since_id is None else {"Last-Event-ID": str(since_id)}
    connection, response = _send(state_dir, "GET", "/events", timeout_s=None, headers=headers)
    try:
        for line in response:
            if line.startswith(b"data: "):
                yield json.loads(line[len(b"data: ") :])
    except (http.client.HTTPException, OSError):
        return  # the deployment ended in the middle of a sentence
    finally:
        connection.close()


def _ask(
    state_dir: Path, method: str, path: str, body: Mapping[str, Any] | None = None, timeout_s: float | None = TIMEOUT_S
) -> dict[str, Any]:
    connection, response = _send(state_dir, method, path, timeout_s=timeout_s, body=json.dumps(body) if body else None)
    try:
        document: dict[str, Any] = json.loads(response.read())
    finally:
        connection.close()
    if "error" in document:
        raise errors.of_document(document["error"])
    return document


def _send(
    state_dir: Path,
    method: str,
    path: str,
    *,
    timeout_s: float | None = TIMEOUT_S,
    headers: Mapping[str, str] = MappingProxyType({}),
    body: str | None = None,
) -> tuple[_UnixConnection, http.client.HTTPResponse]:
    folder = StateFolder(state_dir)
    connection = _UnixConnection(folder.socket, timeout_s)
    try:
        connection.request(method, path, body, dict(headers))
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


def _last_words(folder: StateFolder) -> str:
    """Which service failed when the last run ended, and why; nothing when none did."""
    for service in (folder.status() or {}).get("services", ()):
        if service.get("state") == "FAILED" and (failure := service.get("last_failure")):
            return f": '{service['name']}' failed: {failure['summary']}"
    return ""


def _not_running(folder: StateFolder, error: OSError) -> ToolkitError:
    if isinstance(error, PermissionError):
        return ToolkitError("the deployment belongs to another user", str(folder.path), code="not_permitted")
    owner = folder.owner()
    name = owner.deployment if owner else folder.path.name
    if left := folder.left():
        what = f"deployment '{name}' has no supervisor: {', '.join(left)} run on without one"
        hint = "'coexist up CONFIG' takes them over; 'coexist down' ends them."
        return ToolkitError(what, str(folder.path), hint, code="not_running", services=list(left))
    died = f": its supervisor (pid {owner.pid}) died without tidying up" if owner and not owner.alive else ""
    return ToolkitError(
        f"deployment '{name}' is not running{died or _last_words(folder)}",
        str(folder.path),
        "Start it with 'coexist up CONFIG'.",
        code="not_running",
    )
