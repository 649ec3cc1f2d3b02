"""A stand-in for ``docker``: a strict client, and a daemon that runs containers as plain processes of its own.

``docker.py daemon FOLDER`` serves until it is killed; ``docker.py client FOLDER ARGV…`` is the command. As with the
real one, a container is no child of its client: who kills the client leaves it running. Standard library only.

FOLDER holds ``images`` (one reference a line), ``record.jsonl`` (every command with the client's environment, every
container), and, if a test puts it there, ``hide`` (the processes of containers show no cookie, as when their
environment cannot be read) or ``deaf`` (``stop`` is accepted and nothing happens).
"""

from __future__ import annotations

import array
import csv
import json
import os
import re
import signal
import socket
import socketserver
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path
from typing import Any

WITH_VALUE = {
    *("--name", "--cidfile", "--pull", "--network", "--gpus", "--cpuset-cpus", "--cpuset-mems", "--shm-size"),
    *("--ulimit", "--user", "--security-opt", "--env-file", "-v", "--label", "--env", "--workdir", "--entrypoint"),
}
SWITCHES = {"--rm", "--init"}
LIMITS = {"memlock", "stack", "nofile", "nproc", "core"}
PATTERNS = {
    "--name": r"[a-zA-Z0-9][a-zA-Z0-9_.-]+",
    "--pull": r"always|missing|never",
    "--network": r"host|bridge|none",
    "--cpuset-cpus": r"\d+(-\d+)?(,\d+(-\d+)?)*",
    "--cpuset-mems": r"\d+(-\d+)?(,\d+(-\d+)?)*",
    "--shm-size": r"[1-9]\d*[bkmg]?",
    "--user": r"\d+(:\d+)?",
    "--security-opt": r"no-new-privileges",
    "--label": r"[^=]+=.*",
    "--env": r"[A-Za-z_]\w*=.*",
    "--ulimit": r"[a-z]+=(-1|\d+)(:(-1|\d+))?",
    "-v": r"/[^:]*:/[^:]*(:r[ow])?",
}


class RefusedError(Exception):
    """What the client refuses: exit status 125."""


def parse(argv: list[str]) -> dict[str, list[str]]:
    """Flag to values of ``run``; ``image`` and ``argv`` too."""
    found: dict[str, list[str]] = {}
    rest = list(argv)
    while rest and rest[0].startswith("-"):
        flag = rest.pop(0)
        if flag in SWITCHES:
            found.setdefault(flag, [])
        elif flag in WITH_VALUE:
            found.setdefault(flag, []).append(rest.pop(0))
        else:
            raise RefusedError(f"unknown flag: {flag}")
    if not rest:
        raise RefusedError("'docker run' requires at least 1 argument")
    check(found)
    found["devices"] = [device for value in found.get("--gpus", []) for device in gpus(value)]
    return {**found, "image": [rest[0]], "argv": rest[1:]}


def check(found: dict[str, list[str]]) -> None:
    for flag, pattern in PATTERNS.items():
        for value in found.get(flag, []):
            if not re.fullmatch(pattern, value, re.DOTALL):
                raise RefusedError(f'invalid argument "{value}" for "{flag}" flag')
    for limit in found.get("--ulimit", []):
        if limit.partition("=")[0] not in LIMITS:
            raise RefusedError(f"invalid ulimit type: {limit}")
    for volume in found.get("-v", []):
        if not Path(volume.split(":")[0]).exists():
            raise RefusedError(f"{volume}: the daemon would make that folder as root")


def gpus(value: str) -> list[str]:
    """Devices of one ``--gpus``, which is a line of CSV whose fields are KEY=VALUE."""
    fields = next(csv.reader([value], strict=True))
    pairs = [field.partition("=") for field in fields]
    for key, equals, _ in pairs:
        if not equals and key != "all":
            raise RefusedError(f'invalid argument "{value}" for "--gpus" flag: unexpected field {key}')
        if key not in {"device", "driver", "count", "capabilities", "all"}:
            raise RefusedError(f'invalid argument "{value}" for "--gpus" flag: unexpected key {key}')
    return [device for key, _, devices in pairs if key == "device" for device in devices.split(",")]


def env_file(path: Path) -> dict[str, str]:
    lines = path.read_text(encoding="utf-8").splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


# The client.


def ask(folder: Path, request: dict[str, Any], output: int | None = None) -> dict[str, Any]:
    with socket.socket(socket.AF_UNIX) as door:
        try:
            door.connect(str(folder / "socket"))
        except OSError:
            print("Cannot connect to the Docker daemon. Is the docker daemon running?", file=sys.stderr)
            sys.exit(1)
        data = json.dumps(request).encode() + b"\n"
        fds = [] if output is None else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [output]))]
        door.sendmsg([data], fds)
        with door.makefile() as answers:
            return json.loads(answers.readline() or '{"error": "the daemon is gone"}')


def client(folder: Path, argv: list[str]) -> int:
    with (folder / "record.jsonl").open("a") as record:
        record.write(json.dumps({"command": argv, "env": dict(os.environ)}) + "\n")
    try:
        command, *rest = argv
        if command == "run":
            return run(folder, rest)
        answer = ask(folder, request_of(command, rest))
    except RefusedError as error:
        print(f"docker: {error}\nSee 'docker run --help'.", file=sys.stderr)
        return 125
    if answer.get("error"):
        print(f"Error response from daemon: {answer['error']}", file=sys.stderr)
        return 1
    print(answer["text"])
    return 0


def request_of(command: str, rest: list[str]) -> dict[str, Any]:
    """The other commands, in the forms in which they are used, and in no other."""
    text = " ".join([command, *rest])
    if text == "version --format {{.Server.Version}}":
        return {"do": "version"}
    if match := re.fullmatch(r"image inspect --format \{\{\.Id\}\} (\S+)", text):
        return {"do": "image", "image": match[1]}
    if match := re.fullmatch(r"ps -a -q --no-trunc --filter label=(\S+)", text):
        return {"do": "ps", "label": match[1]}
    if match := re.fullmatch(r"stop -t (\d+) (.+)", text):
        return {"do": "stop", "seconds": int(match[1]), "ids": match[2].split()}
    if match := re.fullmatch(r"(kill|rm -f) (.+)", text):
        return {"do": match[1].split()[0], "ids": match[2].split()}
    if match := re.fullmatch(r"inspect --format \{\{\.State\.Pid\}\} (\S+)", text):
        return {"do": "inspect", "ids": [match[1]]}
    raise RefusedError(f"unknown command or form: {text}")


def run(folder: Path, rest: list[str]) -> int:
    flags = parse(rest)
    made = uuid.uuid4().hex * 2
    for path in map(Path, flags.get("--cidfile", [])):
        if path.exists():
            raise RefusedError(f"container ID file found, make sure the other container isn't running or delete {path}")
    env = {k: v for path in flags.get("--env-file", []) for k, v in env_file(Path(path)).items()}
    env |= dict(value.split("=", 1) for value in flags.get("--env", []))
    answer = ask(folder, {"do": "create", "id": made, "flags": flags, "env": env}, sys.stdout.fileno())
    if answer.get("error"):
        raise RefusedError(f"Error response from daemon: {answer['error']}")
    for path in flags.get("--cidfile", []):
        Path(path).write_text(made)
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, lambda number, _: ask(folder, {"do": "signal", "ids": [made], "signal": number}))
    return int(ask(folder, {"do": "wait", "ids": [made]})["text"])


# The daemon.


class Daemon(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        super().__init__(str(folder / "socket"), Handler)
        self.folder = folder
        self.lock = threading.Lock()
        self.there: dict[str, dict[str, Any]] = {}

    def do(self, request: dict[str, Any], output: int | None) -> str:
        ids = request.get("ids", [])
        if unknown := [each for each in ids if each not in self.there and request["do"] != "wait"]:
            raise RefusedError(f"No such container: {unknown[0]}")
        return str(getattr(self, f"do_{request['do']}")(request, output))

    def do_version(self, _: dict[str, Any], __: int | None) -> str:
        return "27.3.1"

    def do_image(self, request: dict[str, Any], _: int | None) -> str:
        if request["image"] not in (self.folder / "images").read_text().split():
            raise RefusedError(f"No such image: {request['image']}")
        return "sha256:" + "0" * 64

    def do_ps(self, request: dict[str, Any], _: int | None) -> str:
        return "\n".join(each for each, made in self.there.items() if request["label"] in made["labels"])

    def do_create(self, request: dict[str, Any], output: int | None) -> str:
        flags = request["flags"]
        self.do_image({"image": flags["image"][0]}, None)
        name = flags.get("--name", [request["id"]])[0]
        if any(made["name"] == name for made in self.there.values()):
            raise RefusedError(f'Conflict. The container name "/{name}" is already in use')
        env = {"PATH": os.environ["PATH"], "STANDIN_CONTAINER": request["id"], **request["env"]}
        if (self.folder / "hide").exists():
            env.pop("COEXIST_COOKIE", None)
        with (self.folder / "record.jsonl").open("a") as record:
            record.write(json.dumps({"container": name, "id": request["id"], "flags": flags, "env": env}) + "\n")
        argv = [*flags.get("--entrypoint", []), *flags["argv"]]
        process = subprocess.Popen(
            argv, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
        made = {"process": process, "name": name, "labels": flags.get("--label", []), "gone": threading.Event()}
        self.there[request["id"]] = made
        threading.Thread(target=self.reap, args=(request["id"], made, "--rm" in flags), daemon=True).start()
        return request["id"]

    def reap(self, container: str, made: dict[str, Any], remove: bool) -> None:
        status = made["process"].wait()
        for pid in inside(container):  # the rest of a container ends with its first process
            os.kill(pid, signal.SIGKILL)
        made["status"] = status if status >= 0 else 128 - status
        if remove:
            self.there.pop(container, None)
        made["gone"].set()

    def do_wait(self, request: dict[str, Any], _: int | None) -> str:
        made = self.there.get(request["ids"][0])
        if made is None:
            return "0"
        made["gone"].wait()
        return str(made["status"])

    def do_signal(self, request: dict[str, Any], _: int | None) -> str:
        for each in request["ids"]:
            self.there[each]["process"].send_signal(request["signal"])
        return ""

    def do_stop(self, request: dict[str, Any], _: int | None) -> str:
        for each in [] if (self.folder / "deaf").exists() else request["ids"]:
            made = self.there[each]
            made["process"].terminate()
            if not made["gone"].wait(request["seconds"]):
                made["process"].kill()
                made["gone"].wait()
        return "\n".join(request["ids"])

    def do_kill(self, request: dict[str, Any], _: int | None) -> str:
        for each in request["ids"]:
            made = self.there[each]
            made["process"].kill()
            made["gone"].wait()
        return "\n".join(request["ids"])

    def do_rm(self, request: dict[str, Any], _: int | None) -> str:
        self.do_kill(request, None)
        for each in request["ids"]:
            self.there.pop(each, None)
        return "\n".join(request["ids"])

    def do_inspect(self, request: dict[str, Any], _: int | None) -> str:
        return str(self.there[request["ids"][0]]["process"].pid)


def inside(container: str) -> list[int]:
    mark, found = f"STANDIN_CONTAINER={container}".encode(), []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark in entry.read_bytes().split(b"\0"):
                found.append(int(entry.parent.name))
        except OSError:
            continue
    return found


class Handler(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        data, ancillary, _, _ = self.request.recvmsg(1 << 20, socket.CMSG_SPACE(4))
        fds = array.array("i")
        for _, _, content in ancillary:
            fds.frombytes(content)
        output = fds[0] if fds else None
        try:
            answer = {"text": self.server.do(json.loads(data), output)}
        except (RefusedError, OSError) as error:
            answer = {"error": str(error)}
        if output is not None:
            os.close(output)
        try:
            self.request.sendall(json.dumps(answer).encode() + b"\n")
        except OSError:
            return


def serve(folder: Path) -> None:
    daemon = Daemon(folder)
    threading.Thread(target=end_with_parent, args=(os.getppid(), daemon), daemon=True).start()
    daemon.serve_forever(poll_interval=0.1)


def end_with_parent(parent: int, daemon: Daemon) -> None:
    while os.getppid() == parent:
        time.sleep(0.2)
    for made in list(daemon.there.values()):
        made["process"].kill()
    os._exit(0)


if __name__ == "__main__":
    if sys.argv[1] == "daemon":
        serve(Path(sys.argv[2]))
    else:
        sys.exit(client(Path(sys.argv[2]), sys.argv[3:]))
