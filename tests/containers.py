"""An engine of containers for tests: the stand-in's daemon, and a ``docker`` to be put on PATH."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.standins import docker

STANDIN = Path(__file__).parent / "standins" / "docker.py"
PYTHON = [sys.executable, "-I", "-S", str(STANDIN)]


@dataclass
class Engine:
    """``folder``: what the daemon keeps; ``path``: a PATH with its ``docker`` in front."""

    folder: Path
    daemon: subprocess.Popen[bytes]

    @property
    def path(self) -> str:
        return f"{self.folder / 'bin'}:{os.environ['PATH']}"

    def records(self, key: str) -> list[dict[str, Any]]:
        """What was recorded of each ``command`` or ``container``."""
        file = self.folder / "record.jsonl"
        found = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        return [each for each in found if key in each]

    def commands(self, name: str) -> list[list[str]]:
        return [each["command"] for each in self.records("command") if each["command"][0] == name]

    def processes(self) -> list[int]:
        """What runs in its containers, whatever its cookie."""
        return [pid for record in self.records("container") for pid in docker.inside(record["id"])]

    def end(self) -> None:
        """The daemon is gone, as after ``systemctl stop docker``."""
        self.daemon.kill()
        self.daemon.wait()
        (self.folder / "socket").unlink(missing_ok=True)


@contextmanager
def engine(*images: str) -> Iterator[Engine]:
    """A running engine that has these images."""
    folder = Path(tempfile.mkdtemp(prefix="docker-", dir="/tmp"))  # a socket's path must be short
    (folder / "images").write_text("\n".join(images))
    (folder / "bin").mkdir()
    program = folder / "bin" / "docker"
    words = " ".join([*PYTHON, "client", str(folder)])
    program.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
    program.chmod(0o755)
    daemon = subprocess.Popen([*PYTHON, "daemon", str(folder)])
    deadline = time.monotonic() + 20
    while not (folder / "socket").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    made = Engine(folder, daemon)
    try:
        yield made
    finally:
        for pid in made.processes():
            os.kill(pid, 9)
        made.end()
        shutil.rmtree(folder)
