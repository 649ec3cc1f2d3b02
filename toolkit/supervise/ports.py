"""Whether ports are free, and who has them when they aren't."""

from __future__ import annotations

import contextlib
import errno
import socket
from collections.abc import Mapping

import psutil

from toolkit.errors import ToolkitError


def ensure_free(ports: Mapping[str, int]) -> None:
    """Returns when every service's port can be bound, all tested together.

    Raises: ToolkitError that names each taken port, and its owner where that can be seen.
    """
    with contextlib.ExitStack() as held:
        taken = {name: port for name, port in ports.items() if not _bind(port, held)}
    if not taken:
        return
    what = "; ".join(f"port {port} of '{name}' is in use by {_named(owner(port))}" for name, port in taken.items())
    raise ToolkitError(
        what,
        hint="Stop that process, or give the service another port.",
        code="port_in_use",
        resource="port",
        needed=sorted(taken.values()),
        services=sorted(taken),
        owners=[_document(port) for port in taken.values()],
    )


def _bind(port: int, held: contextlib.ExitStack) -> bool:
    probe = held.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: TIME_WAIT is no owner
    try:
        probe.bind(("", port))  # any address: a listener on one of them is a conflict too
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return False
        raise ToolkitError(
            f"port {port} cannot be bound: {error.strerror}", hint="Use another port.", code="port_refused"
        ) from error
    return True


def taken() -> dict[int, str]:
    """Every TCP port that something listens on here, and who does, as far as that can be seen."""
    return {port: _named((pid, _name(pid)) if pid else None) for port, pid in _listeners()}


def owner(port: int) -> tuple[int, str] | None:
    """Process id and name of the port's listener; None when it cannot be seen (another user's, another namespace)."""
    pid = dict(_listeners()).get(port)
    return (pid, _name(pid)) if pid else None


def _name(pid: int) -> str:
    try:
        return psutil.Process(pid).name()
    except psutil.Error:
        return "?"


def _listeners() -> list[tuple[int, int | None]]:
    """Port and pid (None: it cannot be seen) of every TCP listener."""
    try:
        found = psutil.net_connections("tcp")
    except psutil.Error:
        return []
    listening = (each for each in found if each.status == psutil.CONN_LISTEN)
    return [(each.laddr[1], each.pid) for each in listening if each.laddr]


def _named(found: tuple[int, str] | None) -> str:
    return f"'{found[1]}' (pid {found[0]})" if found else "a process that cannot be seen from here"


def _document(port: int) -> dict[str, object]:
    found = owner(port)
    return {"port": port, "pid": found[0] if found else None, "name": found[1] if found else None}
