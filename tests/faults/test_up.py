"""The whole command line: a ``coexist up`` that is killed leaves nothing, nor grants, and the next one starts."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.deployments import Node, until
from tests.ports import free_ports
from toolkit.errors import ToolkitError
from toolkit.supervise import guardian, ports
from toolkit.supervise.guard import cookie_prefix
from toolkit.supervise.state import Owner, StateFolder


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    yield made
    made.end()


def state(node: Node) -> StateFolder:
    return StateFolder(node.folder / "home" / "state" / "faults")


def owner(node: Node) -> Owner | None:
    return state(node).owner()


def left(of: Owner | None) -> list[int]:
    assert of is not None
    return guardian.carriers(cookie_prefix(of.cookie).encode())


@pytest.mark.parametrize("strikes", ["serving", pytest.param("start", marks=pytest.mark.slow)])
def test_a_killed_up_leaves_nothing_and_the_next_one_starts(node: Node, strikes: str) -> None:
    web, behind = free_ports(2)
    file = node.deployment("faults", web, behind)
    document = json.loads(file.read_text())
    document["services"]["web1"]["after"] = ["web"]
    sound = json.dumps(document)
    if strikes == "start":
        document["services"]["web"]["argv"].append("hang")
    file.write_text(json.dumps(document))
    process = node.start("up", file)
    until(lambda: len(node.grants()) == 2 and (document := state(node).status()) and _reached(document, strikes))
    dead = owner(node)
    process.send_signal(signal.SIGKILL)
    process.wait()
    until(lambda: not left(dead))
    until(lambda: _free(web, behind))  # who dies has no environment any more, and its sockets a little longer
    file.write_text(sound)
    code, after = node.run("up", file, "--exit-when-ready")
    assert (code, after["ready"]) == (0, True)
    assert [each["attempt"] for each in after["services"]] == [1, 1]
    assert (owner(node), node.grants()) == (None, [])
    assert _free(web, behind)


def _free(*found: int) -> bool:
    try:
        ports.ensure_free({str(port): port for port in found})
    except ToolkitError:
        return False
    return True


def _reached(document: dict[str, object], strikes: str) -> bool:
    services = document["services"]
    assert isinstance(services, list)
    return bool(document["ready"]) if strikes == "serving" else services[0]["pid"] is not None
