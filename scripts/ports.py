"""Ports for servers that are measured."""

from __future__ import annotations

import socket


def free_port() -> int:
    """A port that is free now."""
    return free_ports(1)[0]


def free_ports(count: int) -> tuple[int, ...]:
    """Ports that are free now, none twice."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    found = tuple(int(each.getsockname()[1]) for each in sockets)
    for each in sockets:
        each.close()
    return found
