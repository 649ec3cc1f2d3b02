from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.supervise.conftest import RUN, carriers, mark, until
from toolkit import processes
from toolkit.supervise import guardian, process
from toolkit.supervise.guard import Guard, close_pipe, cookie_prefix

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


def vanish(guard: Guard) -> None:
    """As the kernel does when the supervisor is killed."""
    for each in guard._guardians:
        close_pipe(each)


async def gone(guard: Guard) -> None:
    await until(lambda: all(process.poll(each) is not None for each in guard._guardians))


async def test_guardians_whose_supervisor_vanished_kill_what_is_left() -> None:
    child = marked(f"g3x{RUN}.llm.1", "left")
    guard = Guard(f"g3x{RUN}")
    vanish(guard)
    assert child.wait(10) == -signal.SIGKILL
    await gone(guard)


async def test_a_guardian_that_was_killed_is_replaced() -> None:
    guard = Guard(f"g4x{RUN}")
    first = guard.pids
    assert guard.keep() == 0
    os.kill(first[0], signal.SIGKILL)
    await until(guard.keep)
    assert guard.pids[0] != first[0]
    assert guard.pids[1] == first[1]
    await guard.dismiss()


async def test_attempts_that_are_to_outlive_the_supervisor_do_and_no_others() -> None:
    kept, other = marked(f"g10x{RUN}.llm.2", "kept"), marked(f"g10x{RUN}.embed.1", "loads")
    guard = Guard(f"g10x{RUN}")
    guard.spare(["llm.2", "embed.1"])
    guard.spare(["llm.2"])
    vanish(guard)
    assert other.wait(10) == -signal.SIGKILL
    await gone(guard)
    assert kept.poll() is None
    kept.kill()
    kept.wait()


async def test_a_guardian_that_was_replaced_knows_what_is_to_live_on() -> None:
    kept = marked(f"g11x{RUN}.llm.1", "known")
    guard = Guard(f"g11x{RUN}")
    guard.spare(["llm.1"])
    for pid in guard.pids:
        os.kill(pid, signal.SIGKILL)
    replaced = 0
    while replaced < 2:
        replaced += guard.keep()
        await asyncio.sleep(0.01)
    vanish(guard)
    await gone(guard)
    assert kept.poll() is None
    kept.kill()
    kept.wait()


async def test_one_of_the_guardians_is_enough() -> None:
    child = marked(f"g7x{RUN}.llm.1", "second")
    guard = Guard(f"g7x{RUN}")
    os.kill(guard.pids[0], signal.SIGKILL)
    vanish(guard)
    assert child.wait(10) == -signal.SIGKILL
    await gone(guard)


async def test_a_guardian_does_not_end_by_a_polite_signal() -> None:
    child = marked(f"g5x{RUN}.llm.1", "polite")
    guard = Guard(f"g5x{RUN}")
    for pid in guard.pids:
        status = Path(f"/proc/{pid}/status")
        await until(lambda status=status: _ignored(status) & 0x4003 == 0x4003)  # type: ignore[misc]  # HUP, INT and TERM
        os.kill(pid, signal.SIGTERM)
    vanish(guard)
    assert child.wait(10) == -signal.SIGKILL
    assert carriers("polite") == []
    await gone(guard)


def test_what_descends_from_a_carrier_is_killed_though_its_environment_was_cleaned() -> None:
    script = (
        "import subprocess, sys, time;"
        "child = [sys.executable, '-I', '-S', '-c', 'import time; time.sleep(600)'];"
        "print(subprocess.Popen(child, env={}, start_new_session=True).pid, flush=True); time.sleep(600)"
    )
    env = {"COEXIST_COOKIE": f"g8x{RUN}.llm.1"}
    parent = subprocess.Popen([sys.executable, "-I", "-S", "-c", script], env=env, stdout=subprocess.PIPE)
    process._direct_children.add(parent.pid)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    guardian.kill_all(cookie_prefix(f"g8x{RUN}").encode())
    assert parent.wait(10) == -signal.SIGKILL
    assert processes.start_time(child) is None
    parent.stdout.close()


def test_attempts_that_are_spared_live_on_and_their_groups_stay(tmp_path: Path) -> None:
    spared, other = marked(f"g9x{RUN}.my.llm.2", "spared"), marked(f"g9x{RUN}.my.llm.1", "earlier")
    for name in ("my.llm.2", "my.llm.1"):
        (tmp_path / name).mkdir()
    guardian.kill_all(cookie_prefix(f"g9x{RUN}").encode(), spared=["my.llm.2"], group=str(tmp_path))
    assert other.wait(10) == -signal.SIGKILL
    assert spared.poll() is None
    assert (tmp_path / "my.llm.1/cgroup.kill").read_text() == "1"
    assert not (tmp_path / "my.llm.2/cgroup.kill").exists()
    spared.kill()
    spared.wait()


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
