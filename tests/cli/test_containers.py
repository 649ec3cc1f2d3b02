"""Services of an image, with an engine of containers that is strict and runs them as plain processes."""

from __future__ import annotations

import json
import os
import signal
import sys

import pytest

from tests.cli.deployments import TINY_SERVER, Node, until
from tests.containers import engine
from tests.ports import free_port

IMAGE = "example.org/tiny:1.0"
FEW = ",".join(map(str, sorted(os.sched_getaffinity(0))[:2]))


class BoxedNode(Node):
    """A node whose deployments run in containers."""

    path: str = ""

    @property
    def environ(self):
        return {**super().environ, "PATH": self.path}

    def boxed(self, port, image=IMAGE, **changes):
        file = self.deployment("boxed", port, **{"environment": "box", **changes})
        document = json.loads(file.read_text())
        document["environments"] = {
            "box": {"image": image, "python": sys.executable, "volumes": [f"{TINY_SERVER.parent}:{TINY_SERVER.parent}"]}
        }
        file.write_text(json.dumps(document))
        return file


@pytest.fixture
def docker():
    with engine(IMAGE) as made:
        yield made


@pytest.fixture
def node(tmp_path, docker):
    made = BoxedNode(tmp_path)
    made.path = docker.path
    yield made
    made.end()


def test_a_service_in_a_container_becomes_ready_and_is_stopped_by_the_id_of_its_container(node, docker):
    (docker.folder / "hide").touch()
    process, status = node.up(node.boxed(free_port(), cpus=1, env={"SECRET_WORD": "swordfish"}))
    assert status["ready"], status
    (made,) = docker.records("container")
    assert made["container"].startswith("coexist-boxed-web-1-")
    assert made["env"]["SECRET_WORD"] == "swordfish"
    assert not [each for each in docker.records("command") if "swordfish" in json.dumps(each)]
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert [command[:3] for command in docker.commands("stop")] == [["stop", "-t", "2"]]
    assert docker.commands("stop")[0][3:] == [made["id"]]
    assert docker.processes() == []


def test_kill_9_of_the_supervisor_leaves_no_container(node, docker):
    (docker.folder / "hide").touch()
    process, status = node.up(node.boxed(free_port()))
    assert status["ready"], status
    assert docker.processes()
    process.kill()
    process.communicate(timeout=60)
    until(lambda: docker.processes() == [])
    until(lambda: docker.commands("rm") != [])


def test_a_container_that_ends_by_itself_is_started_again_and_one_that_ignores_its_stop_removed(node, docker):
    (docker.folder / "hide").touch()
    process, status = node.up(node.boxed(free_port()))
    assert status["ready"], status
    (first,) = docker.processes()
    os.kill(first, signal.SIGKILL)
    until(lambda: len(docker.records("container")) == 2 and docker.processes())
    second = docker.records("container")[1]
    assert second["container"].startswith("coexist-boxed-web-2-")
    (docker.folder / "deaf").touch()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert docker.commands("rm")[-1] == ["rm", "-f", second["id"]]
    assert docker.processes() == []
