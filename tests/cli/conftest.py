from __future__ import annotations

import json
from pathlib import Path

import pytest

from toolkit.cli import boundary


class Answer:
    """What one command line gave: exit code, standard output, standard error."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def document(self) -> dict:
        """Standard output as the one JSON document that it must be."""
        return json.loads(self.out)

    @property
    def error(self) -> dict:
        return self.document["error"]


@pytest.fixture
def coexist(capsys, monkeypatch, tmp_path):
    """Runs one command line in this process, with a home and a runtime folder of its own."""
    monkeypatch.setenv("COEXIST_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COEXIST_RUNTIME_DIR", str(tmp_path / "run"))
    (tmp_path / "run").mkdir(mode=0o700)

    def run(*argv: str | Path) -> Answer:
        capsys.readouterr()
        code = boundary.run([str(word) for word in argv])
        captured = capsys.readouterr()
        return Answer(code, captured.out, captured.err)

    return run
