"""A server that starts in milliseconds and misbehaves as it is told. Standard library only.

``GET /health`` 200 · ``GET /hello`` says hello · ``GET /crash`` ends it with status 7 · ``GET /mute`` answers 503
from then on · ``GET /babble`` says something else than hello from then on, with status 200 · ``GET /flood`` writes
to the log without end from then on. Flags are words, some with a value: ``wait-for=PATH``.
"""

import contextlib
import fcntl
import os
import signal
import socket
import subprocess
import sys
import threading
import time

GRANDCHILD = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"


def main(port: int, flags: set[str]) -> None:
    print(f"tiny server {os.getpid()} on {port}", flush=True)
    begin(flags)
    if "ignore-term" in flags:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "setsid-grandchild" in flags:
        subprocess.Popen([sys.executable, "-I", "-S", "-c", GRANDCHILD], start_new_session=True)
    if "daemon" in flags and os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            argv = [sys.executable, "-I", "-S", "-c", GRANDCHILD]
            os.execve(sys.executable, argv, dict(os.environ))  # noqa: S606
        os._exit(0)
    end_early(flags)
    start_others(flags)
    if "hang" in flags:
        time.sleep(600)
    if "flood" in flags:
        os.write(1, b"x" * 99 + b"\n")
        for _ in range(20_000):
            os.write(1, b"x" * 99 + b"\n")
    serve(port, flags)


def begin(flags: set[str]) -> None:
    """Returns when this process is to go on."""
    values = dict(flag.split("=", 1) for flag in flags if "=" in flag)
    if "rank-0-serves" in flags and os.environ.get("OMPI_COMM_WORLD_RANK") != "0":
        time.sleep(600)
    if "alone" in values:
        hold_alone(values["alone"])
    while "wait-for" in values and not os.path.exists(values["wait-for"]):  # noqa: PTH110
        time.sleep(0.005)


def hold_alone(path: str) -> None:
    """Adds a line to the file when anything of another attempt that called this still runs."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)  # held until the last fork of us has ended
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.write(descriptor, f"{os.getpid()} is not alone\n".encode())


def end_early(flags: set[str]) -> None:
    if "tell-secrets" in flags:
        print("RuntimeError: refused:", *(value for name, value in os.environ.items() if "SECRET" in name), flush=True)
        sys.exit(3)
    if "import-nosuch" in flags:
        __import__("nosuch")
    if "exit-early" in flags:
        print("RuntimeError: no such weights", flush=True)
        sys.exit(3)
    if "exit-zero" in flags:
        sys.exit(0)


def start_others(flags: set[str]) -> None:
    if "ranks" in flags:
        start_ranks("abort-with-rank" in flags)
    if "helpers" in flags:
        threading.Thread(target=start_helpers, daemon=True).start()


def start_ranks(abort: bool) -> None:
    """As mpirun does: two ranks, reaped when they end; with ``abort`` the launcher ends with the first of them."""
    argv = [sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)"]
    ranks = [subprocess.Popen(argv, env={**os.environ, "OMPI_COMM_WORLD_RANK": str(rank)}) for rank in range(2)]
    for rank in ranks:
        threading.Thread(target=_reap, args=(rank, abort), daemon=True).start()


def _reap(rank: "subprocess.Popen[bytes]", abort: bool) -> None:
    rank.wait()
    if abort:
        os._exit(137)


def start_helpers() -> None:
    """Short-lived processes of the same program, one after another; some fail."""
    while True:
        subprocess.run([sys.executable, "-I", "-S", "-c", "import os; os._exit(1)"], check=False)
        helper = subprocess.Popen([sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)"])
        time.sleep(0.01)
        helper.terminate()
        helper.wait()


def leave_one_behind() -> None:
    """A grandchild in a session of its own that ignores TERM and has all that is open here, the port too."""
    if os.fork() == 0:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(600)
        os._exit(0)


def flood() -> None:
    while True:
        os.write(1, (b"x" * 99 + b"\n") * 100)
        time.sleep(0.001)  # ten megabytes a second: more than any log, less than would fill a disk


def serve(port: int, flags: set[str]) -> None:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(32)
    if "port-holder" in flags:
        leave_one_behind()
    status, word = "200 OK", "hello"
    while True:
        connection, _ = listener.accept()
        with connection, contextlib.suppress(ConnectionError, IndexError):  # the other side may hang up
            path = connection.recv(65536).split(b" ")[1].decode()
            if path == "/crash" or (path == "/hello" and "crash-on-hello" in flags):
                os._exit(7)
            if path == "/hello" and "hang-on-hello" in flags:
                time.sleep(600)
            if path == "/flood":
                threading.Thread(target=flood, daemon=True).start()
            if path == "/mute":
                status = "503 Service Unavailable"
            if path == "/babble":
                word = "blah"
            body = f"{word} from {os.environ.get('WHO', 'nobody')}"
            head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            connection.sendall((head + body).encode())


if __name__ == "__main__":
    main(int(sys.argv[1]), set(sys.argv[2:]))
