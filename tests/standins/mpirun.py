"""Stand-ins for Open MPI's ``mpirun`` on one machine, and for ``trtllm-llmapi-launch`` of TensorRT-LLM."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO

VALUES = {"-n": "count", "-np": "count", "--bind-to": "bind", "--output-filename": "output", "-x": "export"}
MPI_SIZE = "tllm_mpi_size"
FLAGS = ("--oversubscribe", "--allow-run-as-root")
STRIPPED = ("OMPI_COMM_", "OMPI_UNIVERSE_", "PMIX_", "PMI_", "SLURM_", "MPI_", "UCX_")


class RefusedError(Exception):
    """What mpirun says before it starts anything."""


def parse(argv: list[str]) -> tuple[dict[str, list[str]], list[str]]:
    """The options, each with its values, and the program with its arguments."""
    found: dict[str, list[str]] = {}
    rest = list(argv)
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        if word in FLAGS:
            found[word] = []
        elif word in VALUES and rest:
            found.setdefault(VALUES[word], []).append(rest.pop(0))
        else:
            raise RefusedError(f'mpirun: Error: unknown option "{word}"')
    if not rest:
        raise RefusedError("mpirun could not find an executable: none was given")
    return found, rest


def check(options: dict[str, list[str]]) -> int:
    """How many ranks. Raises RefusedError."""
    count = int(options["count"][-1])
    allowed = {"OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"} <= set(os.environ)
    if os.geteuid() == 0 and "--allow-run-as-root" not in options and not allowed:
        raise RefusedError("mpirun has detected an attempt to run as root.")
    if count > len(os.sched_getaffinity(0)) and "--oversubscribe" not in options:
        raise RefusedError("There are not enough slots available in the system to satisfy the slots requested.")
    for name in options.get("export", ()):
        if name.partition("=")[0] not in os.environ and "=" not in name:
            raise RefusedError(f"mpirun: could not find environment variable '{name}'")
    return count


def split(argv: list[str]) -> list[list[str]]:
    """The applications that colons separate."""
    found: list[list[str]] = [[]]
    for word in argv:
        if word == ":":
            found.append([])
        else:
            found[-1].append(word)
    return found


def main(argv: list[str]) -> int:
    try:
        contexts = [parse(part) for part in split(argv)]
        counts = [check({**contexts[0][0], **options}) for options, _ in contexts]
    except RefusedError as refused:
        print(refused, file=sys.stderr)
        return 1
    options, programs = contexts[0][0], [program for at, (_, program) in enumerate(contexts) for _ in range(counts[at])]
    ranks = [start(rank, len(programs), options, program) for rank, program in enumerate(programs)]
    signal.signal(signal.SIGTERM, lambda *_: [rank.terminate() for rank in ranks])
    pumps = [threading.Thread(target=pump, args=(rank, number, options)) for number, rank in enumerate(ranks)]
    for each in pumps:
        each.start()
    return wait(ranks)


def start(rank: int, count: int, options: dict[str, list[str]], program: list[str]) -> subprocess.Popen[bytes]:
    env = {
        **os.environ, "OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": str(count),
        "OMPI_COMM_WORLD_LOCAL_RANK": str(rank), "PMIX_RANK": str(rank),
    }  # fmt: skip
    child = subprocess.Popen(program, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if options.get("bind", ["core"])[-1] != "none":  # the default binds each rank to one core
        cpus = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(child.pid, {cpus[rank % len(cpus)]})
    return child


def pump(rank: subprocess.Popen[bytes], number: int, options: dict[str, list[str]]) -> None:
    """What a rank says: to our own output, and to its file."""
    path = Path(os.devnull)
    if "output" in options:
        path = Path(options["output"][-1], "1", f"rank.{number}", "stdout")
        path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        copy(rank, file)


def copy(rank: subprocess.Popen[bytes], file: IO[bytes]) -> None:
    assert rank.stdout is not None
    for line in rank.stdout:
        sys.stdout.buffer.write(line)
        sys.stdout.flush()
        file.write(line)
        file.flush()


def wait(ranks: list[subprocess.Popen[bytes]]) -> int:
    """The status of the first rank that ended wrong; the others are ended then."""
    pid, status = os.wait()
    code = os.waitstatus_to_exitcode(status)
    for rank in ranks:
        if rank.pid != pid:
            rank.terminate()
    for rank in ranks:
        if rank.pid != pid:
            rank.wait()
    return code if code >= 0 else 128 - code


def llmapi_launch(argv: list[str]) -> int:
    """Rank 0 becomes the program it is given, without MPI's variables; the others wait for its work."""
    rank = next(
        (os.environ[name] for name in ("SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK") if name in os.environ), None
    )
    if rank is None:
        print("trtllm-llmapi-launch: no rank is told", file=sys.stderr)
        return 1
    if rank != "0":
        os.execv(argv[0], [argv[0], "--standin-worker"])  # noqa: S606
    env = {name: value for name, value in os.environ.items() if not name.startswith(STRIPPED)}
    env |= {"TLLM_SPAWN_PROXY_PROCESS": "1", MPI_SIZE: os.environ["OMPI_COMM_WORLD_SIZE"]}
    env |= {"TLLM_SPAWN_PROXY_PROCESS_IPC_ADDR": "ipc:///tmp/x", "TLLM_SPAWN_PROXY_PROCESS_IPC_HMAC_KEY": "00"}
    os.execve(argv[0], argv, env)  # noqa: S606
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
