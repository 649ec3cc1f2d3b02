"""What a service manager is told by the protocol of sd_notify: datagrams to the socket that ``NOTIFY_SOCKET`` names.

Nothing is sent where nobody asks for it. A manager that does not listen any more stops nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Protocol

_STATUS_CHARS = 200


class Told(Protocol):
    """What a manager hears of the supervisor."""

    @property
    def stopping(self) -> bool: ...
    @property
    def reloading(self) -> bool: ...
    def snapshot(self) -> dict[str, Any]: ...


class Manager:
    """The service manager; ``tell`` never blocks and never raises."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._address = _address(environ.get("NOTIFY_SOCKET", ""))
        self.watchdog_s = _watchdog_s(environ) if self._address else None

    @property
    def listens(self) -> bool:
        return self._address is not None

    def tell(self, *lines: str) -> None:
        """Sends ``NAME=VALUE`` lines as one message."""
        if self._address is None:
            return
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as out,
        ):
            out.setblocking(False)
            out.sendto("\n".join(lines).encode(), self._address)


def _address(name: str) -> str | None:
    """The socket's address; ``@`` stands for the zero byte of an abstract one. None: none, or of another kind."""
    if name.startswith("@"):
        return "\0" + name[1:]
    return name if name.startswith("/") else None


def _watchdog_s(environ: Mapping[str, str]) -> float | None:
    """Within how long the manager wants to hear from us; None: it does not, or it means another process."""
    wanted, pid = environ.get("WATCHDOG_USEC", ""), environ.get("WATCHDOG_PID", str(os.getpid()))
    if not wanted.isdecimal() or pid != str(os.getpid()):
        return None
    return int(wanted) / 1e6 or None


class Teller:
    """Turns changes of the supervisor into messages: each state once, READY when all required services serve.

    A change of the deployment's shape is a reload, which ends when all of them serve again.
    """

    def __init__(self, manager: Manager) -> None:
        self._manager = manager
        self._ready = self._stopping = self._reloading = False
        self._status = ""

    def changed(self, supervisor: Told) -> None:
        """Tells what is new."""
        if not self._manager.listens:
            return
        document = supervisor.snapshot()
        lines = [*self._steps(supervisor, document["ready"]), *self._status_line(document)]
        if lines:
            self._manager.tell(*lines)

    def _steps(self, supervisor: Told, ready: bool) -> Iterator[str]:
        if supervisor.stopping:
            if not self._stopping:
                yield "STOPPING=1"
            self._stopping = True
            return
        if supervisor.reloading and not self._reloading:
            yield from ("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")
            self._ready = False
        self._reloading = supervisor.reloading
        if ready and not self._ready and not self._reloading:
            yield "READY=1"
            self._ready = True

    def _status_line(self, document: Mapping[str, Any]) -> Iterator[str]:
        status = in_words(document, self._stopping)
        if status != self._status:
            yield f"STATUS={status}"
        self._status = status


def in_words(document: Mapping[str, Any], stopping: bool = False) -> str:
    """One line for ``systemctl status``."""
    services = document["services"]
    states = [service["state"] for service in services]
    head = f"{'stopping, ' if stopping else ''}{states.count('SERVING')} of {len(states)} serving"
    others = [f"{service['name']} {service['state']}" for service in services if service["state"] != "SERVING"]
    return ": ".join([head, ", ".join(others)] if others else [head])[:_STATUS_CHARS]


@asynccontextmanager
async def tended(environ: Mapping[str, str]) -> AsyncIterator[Callable[[Told], None]]:
    """While the block runs, the watchdog hears from this event loop; what it gives is to be called on every change."""
    manager = Manager(environ)
    if manager.watchdog_s is None:
        yield Teller(manager).changed
        return
    task = asyncio.create_task(_keep_alive(manager, manager.watchdog_s))
    try:
        yield Teller(manager).changed
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def _keep_alive(manager: Manager, watchdog_s: float) -> None:
    while True:
        manager.tell("WATCHDOG=1")
        await asyncio.sleep(watchdog_s / 3)  # the manager's manual advises half; a busy host may be late by some
