from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.containers import Engine, engine
from tests.supervise.conftest import until
from toolkit import processes
from toolkit.runtimes.base import Container
from toolkit.supervise import container_guardian, containers, process
from toolkit.supervise import guard as guard_module

RUN = ("docker", "run", "--rm", "--name", "coexist-node-llm", "x:1", "sleep", "600")
COOKIE = "0123456789abcdef"


@pytest.fixture
def docker() -> Iterator[Engine]:
    with engine("x:1") as made:
        (made.folder / "hide").touch()
        yield made


def container_of(docker: Engine, tmp_path: Path) -> Container:
    return Container(str(docker.folder / "bin" / "docker"), tmp_path / "id", {"PATH": docker.path})


def start(container: Container, attempt: str, deployment: str = COOKIE) -> subprocess.Popen[bytes]:
    """A client that runs, once its container does."""
    containers.forget(container)
    argv = containers.labelled(RUN, deployment, f"{deployment}.llm.{attempt}")
    words = [container.program, "run", "--cidfile", str(container.id_file), *argv[2:]]
    client = subprocess.Popen(words, env=dict(container.client_env))
    process._direct_children.add(client.pid)
    while not (container.id_file.exists() and container.id_file.read_text()):
        assert client.poll() is None
        time.sleep(0.005)
    return client


def test_a_container_is_named_and_labelled_by_deployment_and_attempt() -> None:
    argv = containers.labelled(RUN, COOKIE, f"{COOKIE}.llm.3")
    assert argv[:2] == ("docker", "run")
    assert argv[argv.index("--name") + 1] == "coexist-node-llm-3-012345"
    labels = [b for a, b in itertools.pairwise(argv) if a == "--label"]
    assert labels == [f"coexist.deployment={COOKIE}", f"coexist.attempt={COOKIE}.llm.3"]
    assert argv[-3:] == ("x:1", "sleep", "600")


def test_its_processes_are_found_through_the_engine_and_its_end_by_label_before_it_has_an_id(
    docker: Engine, tmp_path: Path
) -> None:
    container = container_of(docker, tmp_path)
    client = start(container, "1")
    assert sorted(containers.pids(container)) == sorted(docker.processes()) != []
    assert client.pid not in containers.pids(container)
    written = container.id_file.read_text()
    container.id_file.unlink()
    containers.stop(container, f"{COOKIE}.llm.1", 2.0)
    assert docker.commands("stop")[0][3:] == [written]
    assert client.wait(10) == 128 + 15
    assert containers.pids(container) == ()


def test_what_another_supervisor_left_is_removed_but_for_that_of_others(docker: Engine, tmp_path: Path) -> None:
    container = container_of(docker, tmp_path)
    ended, foreign = (start(container, *of) for of in (("1",), ("1", "f" * 16)))
    containers.remove_left([container], COOKIE)
    assert ended.wait(10) == 128 + 9
    assert foreign.poll() is None


def test_an_engine_that_is_gone_is_told(docker: Engine, tmp_path: Path) -> None:
    container = container_of(docker, tmp_path)
    docker.end()
    left = containers.remove(container, f"{COOKIE}.llm.1", limit_s=0.2)
    assert left is not None
    assert "Cannot connect to the Docker daemon" in left
    containers.stop(container, f"{COOKIE}.llm.1", 1.0)
    missing = Container("/no/such/docker", tmp_path / "id")
    assert "cannot tell" in (containers.remove(missing, COOKIE, limit_s=0.0) or "")


async def test_a_guardian_removes_them_when_its_supervisor_vanishes_and_not_when_dismissed(
    docker: Engine, tmp_path: Path
) -> None:
    container = container_of(docker, tmp_path)
    client = start(container, "1")
    await containers.Guard(COOKIE, [container]).dismiss()
    assert client.poll() is None
    guard = containers.Guard(COOKIE, [container])
    assert not guard.keep()
    (guardian,) = guard._guardians.values()
    guard_module.close_pipe(guardian)  # as the kernel does when the supervisor is killed
    await asyncio.to_thread(client.wait, 10)
    await until(lambda: docker.processes() == [])
    await until(guard.keep)
    await guard.dismiss()


async def test_without_containers_there_is_no_guardian() -> None:
    guard = containers.Guard(COOKIE, [])
    assert not guard.keep()
    await guard.dismiss()


async def test_a_container_that_comes_later_is_guarded_too(docker: Engine, tmp_path: Path) -> None:
    container = container_of(docker, tmp_path)
    guard = containers.Guard(COOKIE, [])
    client = start(container, "1")
    guard.cover([container])
    guard.cover([container])  # once is enough
    (guardian,) = guard._guardians.values()
    guard_module.close_pipe(guardian)
    assert await asyncio.to_thread(client.wait, 10) == 128 + 9
    await until(guard.keep)
    await guard.dismiss()


async def test_what_a_container_does_counts_as_its_trees_work(tmp_path: Path) -> None:
    busy = subprocess.Popen([sys.executable, "-c", "import time; x = bytearray(64 << 20); time.sleep(600)"])
    tree = process.Tree.spawn(("sleep", "600"), {"PATH": "/usr/bin:/bin"}, None, tmp_path / "log", "usage.llm.1")
    try:
        tree.beside = (busy.pid,)
        await until(lambda: tree.usage().resident_bytes > 64 << 20)
        assert processes.stat(busy.pid) is not None
    finally:
        busy.kill()
        busy.wait()
        await tree.kill()


def test_the_guardian_needs_the_standard_library_only() -> None:
    argv = [sys.executable, "-I", "-S", str(container_guardian.__file__), "coexist.deployment=none"]
    assert subprocess.run(argv, input=b"done\n", env={}, check=False).returncode == 0
