from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from toolkit.serve.scratch import Scratch

HOLD = """
import sys
from toolkit.serve.scratch import Scratch
scratch = Scratch("held-")
print(scratch.path, flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def holder(temporary: Path) -> Iterator[subprocess.Popen[str]]:
    env = {**os.environ, "TMPDIR": str(temporary)}
    with subprocess.Popen(
        [sys.executable, "-c", HOLD], env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        yield process
        process.kill()


def folder_of(process: subprocess.Popen[str]) -> Path:
    assert process.stdout
    return Path(process.stdout.readline().strip())


def test_a_folder_of_a_running_process_is_left_alone(holder: subprocess.Popen[str]) -> None:
    folder = folder_of(holder)
    Scratch("held-")
    assert folder.is_dir()


def test_what_a_killed_process_left_is_removed_by_the_next_one(holder: subprocess.Popen[str]) -> None:
    folder = folder_of(holder)
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert folder.is_dir()
    Scratch("held-")
    assert not folder.exists()


def test_a_process_that_ends_removes_its_folder(holder: subprocess.Popen[str]) -> None:
    folder = folder_of(holder)
    holder.communicate("")
    assert not folder.exists()


def test_cleaned_up_it_is_gone_and_once_is_enough() -> None:
    scratch = Scratch("held-")
    (scratch.path / "file").touch()
    scratch.cleanup()
    scratch.cleanup()
    assert not scratch.path.exists()


def test_folders_without_a_lock_and_links_are_not_ours_to_remove(temporary: Path) -> None:
    plain, aim = temporary / "held-plain", temporary / "aim"
    plain.mkdir()
    aim.mkdir()
    (aim / "file").touch()
    linked = temporary / "held-linked"
    linked.mkdir()
    (linked / ".lock").symlink_to(aim / "file")
    Scratch("held-")
    assert plain.is_dir()
    assert linked.is_dir()
    assert (aim / "file").exists()
