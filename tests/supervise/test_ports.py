from __future__ import annotations

import os
import socket

import psutil
import pytest

from tests.ports import free_port
from toolkit.errors import ToolkitError
from toolkit.supervise import ports


def test_free_ports_are_free_together() -> None:
    ports.ensure_free({"a": free_port(), "b": free_port()})


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])
def test_every_taken_port_is_named_with_its_owner(address: str) -> None:
    with socket.create_server((address, 0)) as one, socket.create_server((address, 0)) as two:
        first, second = one.getsockname()[1], two.getsockname()[1]
        with pytest.raises(ToolkitError) as caught:
            ports.ensure_free({"llm": first, "free": free_port(), "embed": second})
    error = caught.value
    me = f"'{psutil.Process().name()}' (pid {os.getpid()})"
    assert error.what == f"port {first} of 'llm' is in use by {me}; port {second} of 'embed' is in use by {me}"
    assert (error.code, error.details["services"]) == ("port_in_use", ["embed", "llm"])
    assert error.details["owners"][0]["pid"] == os.getpid()


def test_a_connection_that_lingers_after_a_server_is_no_owner() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        client = socket.create_connection(("127.0.0.1", port))
        accepted, _ = server.accept()
        accepted.close()  # the server's side closes first: its port stays in TIME_WAIT
        client.close()
    ports.ensure_free({"a": port})


def test_a_port_without_listener_has_no_owner() -> None:
    assert ports.owner(free_port()) is None
