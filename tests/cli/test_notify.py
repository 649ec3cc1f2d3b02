"""``coexist up`` as a unit of a service manager runs it: what it is told on a real datagram socket."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.deployments import Node
from tests.ports import free_port
from toolkit import processes


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    yield made
    made.end()


def test_a_foreground_up_tells_its_manager_ready_status_and_stopping(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(20)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", "1000000")
        process = node.start("up", node.deployment("unit", free_port(), env={"WHO": "unit"}))
        told: list[str] = []
        while "READY=1" not in told:
            told += manager.recv(4096).decode().split("\n")
        assert "WATCHDOG=1" in told
        assert any(line.startswith("STATUS=0 of 1 serving: web ") for line in told)
        assert "STOPPING=1" not in told
        (service,) = [pid for pid in processes.descendants(process.pid) if processes.has_cookie(pid, "WHO=unit")]
        names = [variable.partition(b"=")[0] for variable in processes.environment(service) or ()]
        assert b"NOTIFY_SOCKET" not in names
        assert b"WATCHDOG_USEC" not in names
        assert process.stdout is not None
        process.stdout.readline()  # it has told its caller, too
        process.send_signal(signal.SIGTERM)
        while "STOPPING=1" not in told:
            told += manager.recv(4096).decode().split("\n")
        assert process.wait(20) == 0
        assert not processes.start_time(service)
