from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import measure_warmup as measured
import pytest


def told(ratio: float) -> dict[str, Any]:
    return {"ratio": ratio, "steady_ms": 30.0, "proof_ms": [60.0], "preload_s": 1.0, "prime_s": 1.0,
            "late_compiles": 0, "canary": True}  # fmt: skip


@pytest.fixture
def asked(tmp_path: Path) -> argparse.Namespace:
    return argparse.Namespace(model=tmp_path, boots=4, bare=1, json=tmp_path / "readings.json")


class Boots:
    """Boots one after another; ``interrupted`` (a number) is one that somebody stops."""

    def __init__(self, interrupted: int | None = None) -> None:
        self.folders: list[Path] = []
        self.interrupted = interrupted

    def __call__(self, model: Path, environ: dict[str, str], folder: Path) -> dict[str, Any] | str:
        if len(self.folders) == self.interrupted:
            raise KeyboardInterrupt
        (folder / f"cache-{len(self.folders)}").touch()
        self.folders.append(folder)
        return "exit 4: not ready" if len(self.folders) == 2 else told(len(self.folders))


def test_an_interrupted_run_goes_on_where_it_was_with_the_same_caches(
    asked: argparse.Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    unwarmed = {"health_s": 1.0, "first_token_ms": [9.0]}
    monkeypatch.setattr(measured, "bare", lambda _: unwarmed)
    first = Boots(interrupted=3)
    monkeypatch.setattr(measured, "boot", first)
    with pytest.raises(KeyboardInterrupt):
        measured.read(measured.Readings.begun(asked.json), asked)
    assert (first.folders[0] / "cache-0").exists()
    monkeypatch.setattr(measured, "bare", lambda _: pytest.fail("it was read before"))
    second = Boots()
    monkeypatch.setattr(measured, "boot", second)
    found = measured.Readings.begun(asked.json)
    assert found.done == 3
    measured.read(found, asked)
    assert [each["ratio"] for each in found.boots] == [1, 3, 1]
    assert found.failed == ["exit 4: not ready"]
    assert json.loads(asked.json.read_text()) == {
        "boots": found.boots, "bare": [unwarmed], "failed": found.failed,
    }  # fmt: skip
    assert set(first.folders) == set(second.folders)
    assert not first.folders[0].exists()


def test_a_file_of_before_counts(asked: argparse.Namespace) -> None:
    asked.json.write_text(json.dumps({"boots": [told(1.0)], "bare": []}))
    assert measured.Readings.begun(asked.json).done == 1
    assert measured.Readings.begun(None).done == 0


def test_what_is_stopped_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured, "STOP_S", 0.2)
    stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(600)"
    process = subprocess.Popen([sys.executable, "-c", stubborn], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    measured.stopped(process)
    measured.stopped(process)
    assert process.returncode == -9
