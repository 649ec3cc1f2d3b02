"""How each fault is brought about; every function returns when it has happened."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tests.cli.deployments import until
from tests.faults.services import GPU
from toolkit.processes import lock_holder
from toolkit.reserve import gpu_start_lock
from toolkit.supervise import client

if TYPE_CHECKING:
    from tests.faults.scene import Scene

YEAR_S = 365 * 86_400.0
DISK_BYTES = 512 * 1024
HOLDS_LOCK = "import sys, time, fcntl; it = open(sys.argv[1], 'w'); fcntl.flock(it, fcntl.LOCK_EX); time.sleep(600)"


def nothing(_: Scene) -> None:
    """The service misbehaves by itself."""


def pid_of_web(scene: Scene) -> int:
    pid = scene.service()["pid"]
    assert isinstance(pid, int)
    return pid


def kill_server(scene: Scene) -> None:
    scene.kill(pid_of_web(scene))


def stop_server(scene: Scene) -> None:
    scene.kill(pid_of_web(scene), signal.SIGSTOP)


def crash(scene: Scene) -> None:
    scene.ask("/crash")


def turn_mute(scene: Scene) -> None:
    scene.ask("/mute")


def babble(scene: Scene) -> None:
    scene.ask("/babble")


def kill_rank(scene: Scene) -> None:
    until(lambda: scene.watched() == len(("web", "behind")) + len(scene.ranks()))
    scene.kill(scene.ranks()["1"])


def kill_mpirun(scene: Scene) -> None:
    """The root of the tree; its ranks are left behind."""
    until(lambda: len(scene.ranks()) == 2)
    kill_server(scene)


def restart(scene: Scene) -> None:
    client.restart(scene.state.path, "web")


def flood(scene: Scene) -> None:
    """Until the log was rotated twice; meanwhile the service answers, and so does the supervisor."""
    scene.ask("/flood")
    rotated = scene.state.log("web").with_name("web.log.1")
    for _ in range(2):
        until(rotated.exists)
        before = rotated.stat().st_ino, rotated.stat().st_mtime_ns
        until(lambda before=before: (rotated.stat().st_ino, rotated.stat().st_mtime_ns) != before)
        assert scene.ask("/hello") == 200
        assert client.status(scene.state.path)["ready"]


def move_the_date(scene: Scene) -> None:
    """A year forward, then a year back; the service is killed each time."""
    for attempt, shift_s in ((2, YEAR_S), (3, -YEAR_S)):
        scene.keeper.shift_s.value = shift_s
        kill_server(scene)
        until(lambda attempt=attempt: scene.service()["attempt"] == attempt and scene.is_ready())


def kill_first_guardian(scene: Scene) -> None:
    _kill_and_await_others(scene, scene.guardians()[:1])


def kill_second_guardian(scene: Scene) -> None:
    _kill_and_await_others(scene, scene.guardians()[1:])


def kill_guardians(scene: Scene) -> None:
    _kill_and_await_others(scene, scene.guardians())


def _kill_and_await_others(scene: Scene, victims: list[int]) -> None:
    for pid in victims:
        scene.kill(pid)
    until(lambda: len(found := scene.guardians()) == 2 and not set(found) & set(victims))


def kill_supervisor(scene: Scene) -> None:
    scene.kill_supervisor()


def kill_supervisor_then_guardian(scene: Scene) -> None:
    guardian = scene.guardians()[0]
    scene.kill(scene.supervisor)
    with contextlib.suppress(ProcessLookupError):  # it may have done its work by now
        scene.kill(guardian)


def kill_guardian_then_supervisor(scene: Scene) -> None:
    scene.kill(scene.guardians()[0])
    scene.kill(scene.supervisor)


def kill_supervisor_and_guardians(scene: Scene) -> None:
    for pid in (*scene.guardians(), scene.supervisor):
        scene.kill(pid)


# The port.


def _open_gate(scene: Scene) -> None:
    (scene.folder / "gate").touch()


def _await_preload(scene: Scene) -> None:
    until(lambda: scene.service()["state"] == "PRELOAD" and scene.members("web"))


def take_port_of_dependant(scene: Scene) -> None:
    """It was free when all ports were tested together; its own attempt finds it taken."""
    _await_preload(scene)
    scene.cleanup.enter_context(socket.create_server(("127.0.0.1", scene.ports["behind"])))
    _open_gate(scene)


def take_port_before_bind(scene: Scene) -> None:
    """Between the last test of the port and the server's own bind; given back once its owner was told."""
    _await_preload(scene)
    with socket.create_server(("127.0.0.1", scene.ports["web"])):
        _open_gate(scene)
        until(lambda: re.search(r"in use by .*\(pid \d+\)", (scene.service()["last_failure"] or {}).get("summary", "")))


# The start lock of a GPU.


def hold_gpu_start(scene: Scene) -> None:
    """Another process starts on the GPU for ever."""
    lock = gpu_start_lock(str(GPU["uuid"]), scene.folder / "run").path
    argv = [sys.executable, "-I", "-S", "-c", HOLDS_LOCK, str(lock)]
    holder = scene.cleanup.enter_context(subprocess.Popen(argv))
    scene.cleanup.callback(holder.kill)
    until(lambda: lock_holder(lock) == holder.pid)


def kill_gpu_start_holder(scene: Scene) -> None:
    lock = gpu_start_lock(str(GPU["uuid"]), scene.folder / "run").path
    pid = lock_holder(lock)
    assert pid is not None
    until(lambda: any(f"waits while pid {pid} starts on its GPU" == each.get("text") for each in scene.events()))
    assert scene.service()["state"] == "INIT"
    scene.kill(pid)


# The disk.


def can_mount() -> bool:
    """Whether a file system of a given size can be had here."""
    return os.geteuid() == 0 and subprocess.run(["unshare", "--mount", "true"], check=False).returncode == 0


def on_a_small_disk(scene: Scene) -> None:
    scene.state.path.mkdir()
    size = f"size={DISK_BYTES},mode=0700"
    subprocess.run(["mount", "-t", "tmpfs", "-o", size, "faults", scene.state.path], check=True)
    unmount = ["umount", "--lazy", str(scene.state.path)]
    scene.cleanup.callback(lambda: subprocess.run(unmount, check=True))


def fill_disk(scene: Scene) -> None:
    """The service is killed while nothing can be written; when its end was seen there is room again."""
    with _full(scene.state.path / "filler"):
        kill_server(scene)
        until(lambda: client.status(scene.state.path)["services"][0]["attempt"] > 1)


@contextlib.contextmanager
def _full(filler: Path) -> Iterator[None]:
    with filler.open("wb", buffering=0) as file:
        for size in (4096, 1):
            with contextlib.suppress(OSError):
                while file.write(b"\0" * size):
                    pass
    yield
    filler.unlink()


def forbid_writing(scene: Scene) -> None:
    """As ``fill_disk``, by the file size limit of the supervisor, which what it starts inherits."""
    _, hard = resource.prlimit(scene.supervisor, resource.RLIMIT_FSIZE)
    resource.prlimit(scene.supervisor, resource.RLIMIT_FSIZE, (0, hard))
    kill_server(scene)
    until(lambda: client.status(scene.state.path)["services"][0]["attempt"] > 1)
    resource.prlimit(scene.supervisor, resource.RLIMIT_FSIZE, (hard, hard))
