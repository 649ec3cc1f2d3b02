"""coexist beside supervisord and circus: the same eight children, one run, one machine.

    pip install -e '.[measure]'          supervisord and circus, into the environment of this script
    .venv/bin/python scripts/measure_supervisor.py [--idle S] [--only NAME …] [--json]

Read are, for each of them, with children that answer HTTP on loopback and do nothing else:

- *restart*: from kill -9 of a child to the first line of its replacement, one child after another; the median and the
  worst. coexist waits on purpose before it starts a child again; that time, which its event log tells, is taken off.
  The replacement's own way to its first line (the interpreter, and coexist's pinning) is in it for all three.
- *from the condition on*: the part of it after the moment from which coexist may start the replacement: nothing of the
  old tree is left, and the wait is over. The others have no such moment.
- *idle*: processor time of the supervisor and its helpers over ``--idle`` seconds, as a share of one core.
- *memory*: PSS of the same processes, so that shared pages count once.
- *left*: children that live on five seconds after kill -9 of the supervisor.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil
from ports import free_ports

ROOT = Path(__file__).resolve().parents[1]
BIN = Path(sys.executable).parent
CHILDREN = 8
LIMIT_S = 60.0
LEFT_AFTER_S = 5.0
CHILD = """\
import os, sys, time
born = time.time_ns()
name, port, folder = sys.argv[1:]
path = f"{folder}/{name}.{os.getpid()}"
with open(path + ".new", "w") as file:
    file.write(str(born))
os.rename(path + ".new", path + ".born")
import socket
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind(("127.0.0.1", int(port)))
listener.listen()
while True:
    connection, _ = listener.accept()
    connection.recv(4096)
    connection.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: 5\\r\\nConnection: close\\r\\n\\r\\nhello")
    connection.close()
"""


@dataclass(frozen=True)
class Reading:
    """What was read of one supervisor; milliseconds, percent of one core, MiB."""

    name: str
    restart_ms: float
    worst_restart_ms: float
    from_condition_ms: float | None
    idle_percent: float
    memory_mib: float
    left: int


@dataclass(frozen=True)
class Scene:
    """The children's folder and ports."""

    folder: Path
    ports: tuple[int, ...]

    def argv(self, number: int) -> list[str]:
        child = str(self.folder / "child.py")
        return [sys.executable, "-I", "-S", child, f"c{number}", str(self.ports[number]), str(self.folder / "born")]

    def born(self, number: int) -> dict[int, int]:
        """When each process of this child began, by pid; nanoseconds since 1970."""
        paths = (self.folder / "born").glob(f"c{number}.*.born")
        return {int(path.name.split(".")[1]): int(path.read_text()) for path in paths}

    def alive(self) -> list[int]:
        """Children that run now, by number; each must be one process."""
        return [pid for number in range(CHILDREN) for pid in self.born(number) if _runs_child(pid, self.folder)]


def _runs_child(pid: int, folder: Path) -> bool:
    try:
        process = psutil.Process(pid)
        return process.status() != psutil.STATUS_ZOMBIE and str(folder) in " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return False


@contextmanager
def scene() -> Iterator[Scene]:
    """A folder with the child's program, and free ports."""
    with tempfile.TemporaryDirectory(prefix="measure-supervisor-") as name:
        folder = Path(name)
        (folder / "born").mkdir()
        (folder / "child.py").write_text(CHILD)
        yield Scene(folder, free_ports(CHILDREN))


def supervisord(made: Scene) -> tuple[list[str], dict[str, str]]:
    """Command and environment; it restarts at once what ended, whenever it looks."""
    programs = "".join(
        f"[program:c{n}]\ncommand={' '.join(made.argv(n))}\nautorestart=true\nstartsecs=0\n" for n in range(CHILDREN)
    )
    file = made.folder / "supervisord.conf"
    head = f"[supervisord]\nnodaemon=true\nlogfile={made.folder}/log\npidfile={made.folder}/pid\n"
    file.write_text(f"{head}childlogdir={made.folder}\n{programs}")
    return [str(BIN / "supervisord"), "-c", str(file)], {}


def circus(made: Scene) -> tuple[list[str], dict[str, str]]:
    """Command and environment, with its defaults otherwise."""
    endpoint, pubsub = free_ports(2)
    watchers = "".join(f"[watcher:c{n}]\ncmd={' '.join(made.argv(n))}\n" for n in range(CHILDREN))
    file = made.folder / "circus.ini"
    addresses = f"endpoint = tcp://127.0.0.1:{endpoint}\npubsub_endpoint = tcp://127.0.0.1:{pubsub}\n"
    file.write_text(f"[circus]\n{addresses}{watchers}")
    return [str(BIN / "circusd"), str(file)], {}


def coexist(made: Scene) -> tuple[list[str], dict[str, str]]:
    """Command and environment: 'coexist up' as a person starts it."""
    services = {
        f"c{n}": {
            "runtime": "command",
            "argv": made.argv(n),
            "port": made.ports[n],
            "ready": {"path": "/"},
            "canary": {"path": "/", "contains": "hello"},
        }
        for n in range(CHILDREN)
    }
    file = made.folder / "deploy.yaml"
    file.write_text(json.dumps({"version": 1, "name": "measure", "services": services}))
    (made.folder / "run").mkdir(mode=0o700)
    env = {"COEXIST_HOME": str(made.folder / "home"), "COEXIST_RUNTIME_DIR": str(made.folder / "run")}
    return [sys.executable, "-m", "toolkit.cli", "up", str(file)], env


Make = Callable[[Scene], tuple[list[str], dict[str, str]]]
SUPERVISORS: dict[str, Make] = {"coexist": coexist, "supervisord": supervisord, "circus": circus}


def measure(name: str, idle_s: float) -> Reading:
    """What one supervisor reads."""
    with scene() as made:
        argv, env = SUPERVISORS[name](made)
        output = (made.folder / "output").open("wb")
        process = subprocess.Popen(argv, env={**os.environ, **env}, cwd=ROOT, stdout=output, stderr=output)
        try:
            wait(lambda: len(made.alive()) == CHILDREN and is_settled(name, made), "all children run")
            time.sleep(3.0)  # what a start leaves to do
            idle, memory = idle_percent(process.pid, made, idle_s), memory_mib(process.pid, made)
            found = [restart(name, made, number) for number in range(CHILDREN)]
            wait(lambda: len(made.alive()) == CHILDREN and is_settled(name, made), "all children run again")
            process.kill()
            process.wait()
            time.sleep(LEFT_AFTER_S)
            left = len(made.alive())
        finally:
            process.kill()
            process.wait()
            for pid in made.alive():
                os.kill(pid, signal.SIGKILL)
    times = [each.total_ms for each in found]
    conditions = [each.from_condition_ms for each in found if each.from_condition_ms is not None]
    since = statistics.median(conditions) if conditions else None
    return Reading(name, statistics.median(times), max(times), since, idle, memory, left)


def is_settled(name: str, made: Scene) -> bool:
    """Whether all children count as up; coexist says so itself."""
    if name != "coexist":
        return True
    status = _state(made) / "status.json"
    return status.exists() and json.loads(status.read_text())["ready"]


def _state(made: Scene) -> Path:
    return made.folder / "home" / "state" / "measure"


def wait(holds: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not holds():
        if time.monotonic() > deadline:
            sys.exit(f"it never came true that {what}")
        time.sleep(0.005)


@dataclass(frozen=True)
class Restart:
    """One restart, in milliseconds; ``from_condition_ms`` None: not told."""

    total_ms: float
    from_condition_ms: float | None = None


def restart(name: str, made: Scene, number: int) -> Restart:
    """From kill -9 of the child to the first line of its replacement, without a wait on purpose."""
    before = made.born(number)
    (victim,) = [pid for pid in made.alive() if pid in before]
    killed_ns = time.time_ns()
    os.kill(victim, signal.SIGKILL)
    wait(lambda: len(made.born(number)) > len(before), f"child {number} is replaced")
    (born_ns,) = [born for pid, born in made.born(number).items() if pid not in before]
    total_ms = (born_ns - killed_ns) / 1e6
    if name != "coexist":
        return Restart(total_ms)
    wait(lambda: is_settled(name, made), "the replacement serves")
    began_s, ended_s = backoff((_state(made) / "events.jsonl").read_text().splitlines(), f"c{number}")
    return Restart(total_ms - (ended_s - began_s) * 1000, born_ns / 1e6 - ended_s * 1000)


def backoff(events: Sequence[str], service: str) -> tuple[float, float]:
    """When the service's last BACKOFF began and ended by the event log; seconds since 1970."""
    began_s = ended_s = 0.0
    for event in map(json.loads, events):
        if event["service"] == service and event["kind"] == "transition":
            at_s = datetime.fromisoformat(event["at"].replace("Z", "+00:00")).timestamp()
            if event["to"] == "BACKOFF":
                began_s = at_s
            elif event["from"] == "BACKOFF":
                ended_s = at_s
    return began_s, ended_s


def helpers(pid: int, made: Scene) -> list[psutil.Process]:
    """The supervisor and what runs for it, the children apart."""
    main, children = psutil.Process(pid), set(made.alive())
    return [main, *(each for each in main.children(recursive=True) if each.pid not in children)]


def idle_percent(pid: int, made: Scene, idle_s: float) -> float:
    """Processor time of the supervisor over a while in which nothing happens."""
    processes = helpers(pid, made)
    before, start = _cpu_s(processes), time.monotonic()
    time.sleep(idle_s)
    return 100 * (_cpu_s(processes) - before) / (time.monotonic() - start)


def _cpu_s(processes: Sequence[psutil.Process]) -> float:
    """From each process's own clock, which is finer than the ticks of /proc (clock_getcpuclockid(3))."""
    return sum(time.clock_gettime((~process.pid << 3) | 2) for process in processes)


def memory_mib(pid: int, made: Scene) -> float:
    """PSS of the supervisor and its helpers."""
    return sum(process.memory_full_info().pss for process in helpers(pid, made)) / 2**20


def table(readings: Sequence[Reading]) -> str:
    """The readings as a Markdown table."""
    columns = ["", "restart, median (worst)", "from the condition on", "idle CPU", "memory", "children left"]
    head = ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    return "\n".join(head + [_row(each) for each in readings])


def _row(each: Reading) -> str:
    took = f"{each.restart_ms:.0f} ms ({each.worst_restart_ms:.0f})"
    since = "-" if each.from_condition_ms is None else f"{each.from_condition_ms:.0f} ms"
    left = f"{each.left} of {CHILDREN}"
    cells = (each.name, took, since, f"{each.idle_percent:.2f}%", f"{each.memory_mib:.0f} MiB", left)
    return "| " + " | ".join(cells) + " |"


def machine() -> str:
    """Where it was read."""
    return f"{os.cpu_count()} CPUs, {platform.system()} {platform.release()}, Python {platform.python_version()}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--idle", type=float, default=20.0, metavar="S", help="seconds of idleness that are measured")
    parser.add_argument("--only", nargs="+", choices=SUPERVISORS, default=list(SUPERVISORS), metavar="NAME")
    parser.add_argument("--json", action="store_true", help="print JSON")
    asked = parser.parse_args()
    missing = [name for name in asked.only if name != "coexist" and not (BIN / _program(name)).exists()]
    if missing:
        sys.exit(f"not installed here: {', '.join(missing)}; get them with: pip install -e '.[measure]'")
    readings = [measure(name, asked.idle) for name in asked.only]
    if asked.json:
        print(json.dumps({"machine": machine(), "readings": [asdict(each) for each in readings]}))
    else:
        print(f"{datetime.now():%Y-%m-%d}, {machine()}, {CHILDREN} children\n\n{table(readings)}")


def _program(name: str) -> str:
    return {"circus": "circusd"}.get(name, name)


if __name__ == "__main__":
    main()
