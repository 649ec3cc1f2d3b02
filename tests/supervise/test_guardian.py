from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.supervise.conftest import RUN, carriers, mark, until
from toolkit.supervise import guardian, process
from toolkit.supervise.guard import Guard, cookie_prefix

SLEEPS = [sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)"]


def marked(cookie: str, who: str) -> subprocess.Popen[bytes]:
    child = subprocess.Popen(SLEEPS, env={"COEXIST_COOKIE": cookie, "WHO": mark(who)}, start_new_session=True)
    process._direct_children.add(child.pid)
    return child


def test_all_that_carries_the_prefix_is_killed_and_nothing_else() -> None:
    ours, other = marked(f"g1x{RUN}.llm.1", "ours"), marked(f"g1x{RUN}0.llm.1", "other")
    guardian.kill_all(cookie_prefix(f"g1x{RUN}").encode())
    assert ours.wait(10) == -signal.SIGKILL
    assert other.poll() is None
    other.kill()
    other.wait()


def test_a_variable_that_only_ends_like_the_cookie_does_not_count(tmp_path: Path) -> None:
    (tmp_path / "12").mkdir()
    (tmp_path / "12" / "environ").write_bytes(b"X_COEXIST_COOKIE=g1.llm.1\0")
    assert guardian.carriers(b"COEXIST_COOKIE=g1.", str(tmp_path)) == []


async def test_a_guardian_that_is_dismissed_kills_nothing() -> None:
    child = marked(f"g2x{RUN}.llm.1", "kept")
    guard = Guard(f"g2x{RUN}")
    await guard.dismiss()
    assert child.poll() is None
    child.kill()
    child.wait()


async def test_a_guardian_whose_supervisor_vanished_kills_what_is_left() -> None:
    child = marked(f"g3x{RUN}.llm.1", "left")
    guard = Guard(f"g3x{RUN}")
    guard._close_pipe()  # as the kernel does when the supervisor is killed
    assert child.wait(10) == -signal.SIGKILL
    await until(lambda: process.poll(guard._process) is not None)


async def test_a_guardian_that_was_killed_is_replaced() -> None:
    guard = Guard(f"g4x{RUN}")
    first = guard.pid
    assert not guard.keep()
    os.kill(first, signal.SIGKILL)
    await until(guard.keep)
    assert guard.pid != first
    await guard.dismiss()


async def test_a_guardian_does_not_end_by_a_polite_signal() -> None:
    child = marked(f"g5x{RUN}.llm.1", "polite")
    guard = Guard(f"g5x{RUN}")
    status = Path(f"/proc/{guard.pid}/status")
    await until(lambda: _ignored(status) & 0x4003 == 0x4003)  # HUP, INT and TERM
    os.kill(guard.pid, signal.SIGTERM)
    guard._close_pipe()
    assert child.wait(10) == -signal.SIGKILL
    assert carriers("polite") == []
    await until(lambda: process.poll(guard._process) is not None)


def _ignored(status: Path) -> int:
    line = next(line for line in status.read_text().splitlines() if line.startswith("SigIgn"))
    return int(line.split()[1], 16)


@pytest.mark.parametrize("argument", ["-I", "-S"])
def test_the_guardian_needs_the_standard_library_only(argument: str) -> None:
    done = subprocess.run(
        [sys.executable, argument, guardian.__file__, "COEXIST_COOKIE=g6."],
        input=b"done\n",
        env={},
        timeout=30,
        check=False,
    )
    assert done.returncode == 0
