"""Real ``coexist`` processes on tiny servers, with a home and a runtime folder of their own."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from toolkit.cli import boundary

TINY_SERVER = Path(__file__).resolve().parents[1] / "supervise" / "tiny_server.py"
ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 60.0


@dataclass
class Node:
    """A machine as far as coexist is concerned: one ledger, one home."""

    folder: Path
    running: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def environ(self) -> dict[str, str]:
        (self.folder / "run").mkdir(mode=0o700, exist_ok=True)
        own = {"COEXIST_HOME": str(self.folder / "home"), "COEXIST_RUNTIME_DIR": str(self.folder / "run")}
        return {**os.environ, **own, "PYTHONPATH": str(ROOT)}

    def deployment(self, name: str, port: int, *more_ports: int, **changes: Any) -> Path:
        """A deployment file with a tiny service for each port: web, web1, …; ``changes`` are keys of the first."""
        services = {"web": {**self._service(port), **changes}}
        services |= {f"web{n}": self._service(each) for n, each in enumerate(more_ports, 1)}
        file = self.folder / f"{name}.yaml"
        file.write_text(json.dumps({"version": 1, "name": name, "services": services}))
        return file

    def _service(self, port: int) -> dict[str, Any]:
        return {
            "runtime": "command",
            "argv": [sys.executable, "-I", "-S", str(TINY_SERVER), "{port}"],
            "ready": {"path": "/health"},
            "canary": {"path": "/hello", "contains": "hello"},
            "port": port,
            "grace": "2s",
        }

    def start(self, *argv: object) -> subprocess.Popen[str]:
        """``coexist ARGV --json``, left running."""
        command = [sys.executable, "-m", "toolkit.cli", *map(str, argv), "--json"]
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, env=self.environ, stdout=pipe, stderr=subprocess.DEVNULL, text=True)
        self.running.append(process)
        return process

    def run(self, *argv: object) -> tuple[int, dict[str, Any]]:
        """Exit code and document of ``coexist ARGV --json``; what supervises has a process of its own."""
        if argv[0] in ("up", "bench"):
            out, _ = self.start(*argv).communicate(timeout=LIMIT_S)
            return self.running[-1].returncode, json.loads(out)
        said = io.StringIO()
        with mock.patch.dict(os.environ, self.environ), contextlib.redirect_stdout(said):
            code = boundary.run([*map(str, argv), "--json"])
        return code, json.loads(said.getvalue())

    def up(self, file: Path) -> tuple[subprocess.Popen[str], dict[str, Any]]:
        """A deployment that runs, and its first document: the status when ready, or the error."""
        process = self.start("up", file)
        assert process.stdout is not None
        return process, json.loads(process.stdout.readline())

    def grants(self) -> list[Mapping[str, Any]]:
        path = self.folder / "run" / "ledger.json"
        return json.loads(path.read_text())["grants"] if path.exists() else []

    def end(self) -> None:
        """Stops what still runs, as Ctrl-C does."""
        for process in self.running:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
        for process in self.running:
            process.communicate(timeout=LIMIT_S)


def until(holds: Any, limit_s: float = LIMIT_S) -> None:
    deadline = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.02)
