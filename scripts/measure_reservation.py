#!/usr/bin/env python3
"""Races 'coexist up' for one core and one port, many at a time, and counts who was let in.

    python scripts/measure_reservation.py [--racers N] [--rounds N]

Every racer is a real process with a deployment of its own on this host's ledger. In each round exactly one may be
granted the core; a second one would be a double grant. Exits 1 when there was one.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ports import free_port

ROOT = Path(__file__).resolve().parent.parent
SERVER = """
import http.server, sys
class Hello(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b"hello")
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Hello).serve_forever()
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--racers", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rounds = [race(Path(folder), options.racers, n) for n in range(options.rounds)]
    granted = [found["granted"] for found in rounds]
    double = sum(max(0, count - 1) for count in granted)
    seconds = statistics.median(found["seconds"] for found in rounds)
    print(f"{options.racers} racers, {options.rounds} rounds: granted {granted}, double grants {double}, ", end="")
    print(
        f"refused by {sorted({by for found in rounds for by in found['refused_by']})}, median {seconds:.1f} s a round"
    )
    return 1 if double or 0 in granted else 0


def race(folder: Path, racers: int, number: int) -> dict[str, Any]:
    """One round: how many were granted, and what refused the others."""
    core, port = min(os.sched_getaffinity(0)), free_port()
    files = [deployment(folder, f"race-{number}-{n}", port, core) for n in range(racers)]
    began_s = time.monotonic()
    running = [up(folder, file) for file in files]
    try:
        answers = [json.loads(process.stdout.readline()) for process in running if process.stdout]
    finally:
        end(running)
    errors = [answer["error"] for answer in answers if "error" in answer]
    return {
        "granted": sum("error" not in answer for answer in answers),
        "refused_by": [error.get("resource") or error["code"] for error in errors],
        "seconds": time.monotonic() - began_s,
    }


def deployment(folder: Path, name: str, port: int, core: int) -> Path:
    service = {
        "runtime": "command",
        "argv": [sys.executable, "-c", SERVER, "{port}"],
        "ready": {"path": "/"},
        "canary": {"path": "/", "contains": "hello"},
        "cpus": str(core),
        "port": port,
    }
    file = folder / f"{name}.yaml"
    file.write_text(json.dumps({"version": 1, "name": name, "services": {"web": service}}))
    return file


def up(folder: Path, file: Path) -> subprocess.Popen[str]:
    run = folder / "run"
    run.mkdir(mode=0o700, exist_ok=True)
    own = {"COEXIST_HOME": str(folder / "home"), "COEXIST_RUNTIME_DIR": str(run), "PYTHONPATH": str(ROOT)}
    argv = [sys.executable, "-m", "toolkit.cli", "up", str(file), "--json"]
    environ = {**os.environ, **own}
    return subprocess.Popen(argv, env=environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def end(running: Sequence[subprocess.Popen[str]]) -> None:
    for process in running:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
    for process in running:
        process.communicate()


if __name__ == "__main__":
    sys.exit(main())
