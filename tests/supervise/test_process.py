from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.ports import free_port
from tests.supervise.conftest import RUN, TINY_SERVER, carriers, mark, until
from toolkit import processes
from toolkit.errors import ToolkitError
from toolkit.processes import Identity
from toolkit.supervise import process
from toolkit.supervise.process import Tree

PYTHON = (sys.executable, "-I", "-S", "-c")


@pytest.fixture(autouse=True)
def subreaper() -> None:
    process.become_subreaper()


def grow(log: Path, *argv: str, who: str = "tree", cookie: str = f"test{RUN}.tree.1") -> Tree:
    return Tree.spawn(argv, {"WHO": mark(who)}, None, log, cookie)


def tiny(log: Path, *flags: str, who: str = "tree") -> Tree:
    argv = (sys.executable, "-I", "-S", str(TINY_SERVER), str(free_port()), *flags)
    return grow(log, *argv, who=who, cookie=f"test{RUN}.{who}.1")


async def test_the_environment_is_exact_and_the_output_goes_to_the_log(tmp_path: Path) -> None:
    script = "import os, sys; print(sorted(os.environ.items())); print('oops', file=sys.stderr)"
    tree = grow(tmp_path / "log", *PYTHON, script)
    assert await tree.wait_exit() == 0
    text = (tmp_path / "log").read_text()
    own = [line for line in text.splitlines() if line.startswith("[")]
    seen = {name for name, _ in eval(own[0])} - {"LC_CTYPE"}  # noqa: S307 (Python adds this one itself)
    assert seen == {"COEXIST_COOKIE", "WHO"}
    assert "oops" in text


async def test_a_polite_program_ends_by_term(tmp_path: Path) -> None:
    tree = tiny(tmp_path / "log")
    assert await tree.stop(grace_s=10.0) == []
    assert tree.exit_status == -signal.SIGTERM


async def test_a_program_that_ignores_term_is_killed_after_its_grace(tmp_path: Path) -> None:
    tree = tiny(tmp_path / "log", "ignore-term")
    await until(lambda: "tiny server" in (tmp_path / "log").read_text())
    await asyncio.sleep(0.1)
    assert await tree.stop(grace_s=0.2) == []
    assert tree.exit_status == -signal.SIGKILL


@pytest.mark.parametrize("flag", ["setsid-grandchild", "daemon"])
async def test_what_left_the_session_is_killed_too_and_reaped(tmp_path: Path, flag: str) -> None:
    tree = tiny(tmp_path / "log", flag, who=flag)
    await until(lambda: len(carriers(flag)) == 2)
    left = carriers(flag)
    assert await tree.stop(grace_s=5.0) == []
    assert carriers(flag) == []
    assert left
    assert {processes.stat(pid) for pid in left} == {None}


async def test_a_grandchild_that_outlives_its_parent_is_found_by_its_cookie(tmp_path: Path) -> None:
    script = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {'import time; time.sleep(600)'!r}], start_new_session=True)"  # noqa: E501
    tree = grow(tmp_path / "log", *PYTHON, script, who="orphan")
    assert await tree.wait_exit() == 0
    assert len(tree.members()) == 1
    assert await tree.kill() == []
    assert carriers("orphan") == []


async def test_a_member_in_the_middle_of_an_exec_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {'import time; time.sleep(600)'!r}], start_new_session=True)"  # noqa: E501
    tree = grow(tmp_path / "log", *PYTHON, script, who="exec")
    await tree.wait_exit()
    await until(lambda: len(carriers("exec")) == 1)
    (orphan,) = carriers("exec")
    real, hidden = processes.environment, [2]

    def environment(pid: int) -> list[bytes] | None:
        if pid == orphan and hidden[0]:
            hidden[0] -= 1
            return None
        return real(pid)

    monkeypatch.setattr(processes, "environment", environment)
    assert await tree.kill() == []
    monkeypatch.undo()
    assert (hidden, carriers("exec")) == ([0], [])


async def test_a_child_with_a_cleaned_environment_is_found_by_descent(tmp_path: Path) -> None:
    script = (
        "import subprocess, sys, time;"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], env={}, start_new_session=True);"
        "print('born', flush=True); time.sleep(600)"
    )
    tree = grow(tmp_path / "log", *PYTHON, script)
    await until(lambda: "born" in (tmp_path / "log").read_text())
    members = tree.members()
    assert len(members) == 2
    await tree.stop(grace_s=0.1)
    assert [processes.stat(member.pid) for member in members] == [None, None]


async def test_nothing_outside_the_tree_is_a_member(tmp_path: Path) -> None:
    with subprocess.Popen([*PYTHON, "import time; time.sleep(600)"]) as other:
        tree = tiny(tmp_path / "log")
        assert {member.pid for member in tree.members()} == {tree.pid}
        await tree.stop(grace_s=5.0)
        assert other.poll() is None
        other.kill()


async def test_a_process_that_took_over_a_pid_gets_no_signal() -> None:
    with subprocess.Popen([*PYTHON, "import time; time.sleep(600)"]) as other:
        process.send([Identity(other.pid, 1)], signal.SIGKILL)
        found = processes.stat(other.pid)
        assert found is not None
        assert found.state != "Z"
        process.send([found.identity], signal.SIGKILL)
        assert other.wait(10) == -signal.SIGKILL


async def test_children_of_other_code_are_not_reaped() -> None:
    with subprocess.Popen([*PYTHON, "raise SystemExit(5)"]) as other:
        await until(lambda: (found := processes.stat(other.pid)) is not None and found.state == "Z")
        process.reap_adopted()
        assert other.wait(10) == 5


async def test_a_missing_program_is_named(tmp_path: Path) -> None:
    with pytest.raises(ToolkitError, match="cannot start '/no/such/program': not found"):
        grow(tmp_path / "log", "/no/such/program")


async def test_a_missing_working_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ToolkitError, match=r"working folder .*gone does not exist"):
        Tree.spawn(PYTHON, {}, tmp_path / "gone", tmp_path / "log", "test.x.1")


async def test_usage_counts_the_whole_tree(tmp_path: Path) -> None:
    tree = tiny(tmp_path / "log", "setsid-grandchild", who="usage")
    await until(lambda: len(carriers("usage")) == 2)
    alone = processes.stat(tree.pid)
    assert alone is not None
    assert tree.usage().resident_bytes > alone.resident_bytes
    await tree.stop(grace_s=5.0)


async def test_usage_counts_who_left_its_parent_once_it_was_seen(tmp_path: Path) -> None:
    tree = tiny(tmp_path / "log", "daemon", who="stray")

    def strays() -> set[int]:
        return {each.pid for each in tree.members()} - set(processes.descendants(tree.pid))

    await until(lambda: strays() and len(carriers("stray")) == 2)
    (stray,) = strays()
    main, other = processes.stat(tree.pid), processes.stat(stray)
    assert main is not None
    assert other is not None
    assert tree.usage().resident_bytes >= main.resident_bytes + other.resident_bytes // 2
    await tree.stop(grace_s=5.0)
    await until(lambda: not carriers("stray"))


async def test_usage_counts_the_work_of_children_that_have_ended(tmp_path: Path) -> None:
    work = "import time; until = time.process_time() + 0.1\nwhile time.process_time() < until: pass\nprint('x' * 9999)"
    then = "print('over', flush=True); time.sleep(600)"
    script = f"import subprocess, time; subprocess.run([*{PYTHON!r}, {work!r}]); {then}"
    tree = grow(tmp_path / "log", *PYTHON, script)
    await until(lambda: "over" in (tmp_path / "log").read_text())
    assert list(processes.descendants(tree.pid)) == [tree.pid]
    assert tree.usage().cpu_s >= 0.1
    assert tree.usage().io_bytes >= 9999
    await tree.stop(grace_s=5.0)


async def test_usage_tells_what_disks_did_from_what_was_only_read(tmp_path: Path) -> None:
    script = (
        "import time; left = 32 << 20\n"
        "while left > 0: left -= len(open('/proc/self/maps').read())\n"
        "print('over', flush=True); time.sleep(600)"
    )
    tree = grow(tmp_path / "log", *PYTHON, script)
    await until(lambda: "over" in (tmp_path / "log").read_text())
    usage = tree.usage()
    assert usage.disk_bytes < 32 << 20 <= usage.io_bytes
    await tree.stop(grace_s=5.0)


async def test_the_main_process_dies_with_the_supervisor(tmp_path: Path) -> None:
    script = (
        "import asyncio, os, sys; from pathlib import Path; from toolkit.supervise.process import Tree\n"
        "async def main():\n"
        "    tree = Tree.spawn([sys.executable, '-c', 'import time; time.sleep(600)'], {}, None, Path(sys.argv[1]), 'test.d.1')\n"  # noqa: E501
        "    print(tree.pid, flush=True); os._exit(1)\n"
        "asyncio.run(main())"
    )
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", script, str(tmp_path / "log")],
        capture_output=True,
        timeout=60,
        check=False,
    )
    pid = int(done.stdout)
    await until(lambda: (found := processes.stat(pid)) is None or found.state == "Z")


async def test_no_descriptors_are_left_behind(tmp_path: Path) -> None:
    await tiny(tmp_path / "log").stop(grace_s=5.0)
    await asyncio.sleep(0.05)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(5):
        await tiny(tmp_path / "log").stop(grace_s=5.0)
    await asyncio.sleep(0.05)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


async def test_a_flooding_child_never_waits_for_us(tmp_path: Path) -> None:
    tree = tiny(tmp_path / "log", "flood")
    time.sleep(0.5)  # nobody reads, and the loop does not even run
    await until(lambda: (tmp_path / "log").stat().st_size > 2_000_000)
    await tree.stop(grace_s=5.0)


# A launcher as mpirun is one: its ranks are in sessions of their own; on TERM it tells them, and waits for them.
MPIRUN = """
import os, signal, subprocess, sys
RANK = "import os, signal, sys, time; os.setsid()\\n" \\
       "signal.signal(signal.SIGTERM, lambda *_: (print('rank got TERM', flush=True), sys.exit(0)))\\n" \\
       "print('rank up', flush=True); time.sleep(600)"
ranks = [subprocess.Popen([sys.executable, "-I", "-S", "-c", RANK]) for _ in range(2)]
def told(*_):
    print("launcher got TERM", flush=True)
    for rank in ranks:
        rank.terminate()
signal.signal(signal.SIGTERM, told)
print([rank.wait() for rank in ranks], flush=True)
"""


async def test_term_goes_to_the_launcher_alone_which_ends_its_ranks_in_good_order(tmp_path: Path) -> None:
    log = tmp_path / "log"
    tree = grow(log, *PYTHON, MPIRUN, who="mpirun")
    await until(lambda: log.read_text().count("rank up") == 2)
    assert len(carriers("mpirun")) == 3
    assert await tree.stop(grace_s=10.0) == []
    assert log.read_text().splitlines()[2:] == ["launcher got TERM", *["rank got TERM"] * 2, "[0, 0]"]
    assert (tree.exit_status, carriers("mpirun")) == (0, [])


async def test_ranks_in_sessions_of_their_own_are_killed_when_their_launcher_tells_them_nothing(tmp_path: Path) -> None:
    log = tmp_path / "log"
    tree = grow(log, *PYTHON, MPIRUN.replace("rank.terminate()", "pass"), who="deaf")
    await until(lambda: log.read_text().count("rank up") == 2)
    assert await tree.stop(grace_s=0.2) == []
    assert "rank got TERM" not in log.read_text()
    assert (tree.exit_status, carriers("deaf")) == (-signal.SIGKILL, [])


def stranger(*argv: str, who: str, cookie: str) -> Identity:
    """A process that is nobody's child here, as one is whose supervisor died."""
    start = (
        "import subprocess, sys;print(subprocess.Popen(sys.argv[1:], start_new_session=True, stdout=-3, stderr=-3).pid)"
    )
    env = {"WHO": mark(who), "COEXIST_COOKIE": cookie}
    process._libc.prctl(process._PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
    done = subprocess.run([*PYTHON, start, *argv], env=env, capture_output=True, text=True, check=True)
    found = processes.stat(int(done.stdout))
    assert found is not None
    return found.identity


async def test_the_end_of_an_adopted_process_is_seen_without_its_status() -> None:
    cookie = f"test{RUN}.adopted.1"
    identity = stranger(*PYTHON, "import time; time.sleep(600)", who="adopted", cookie=cookie)
    tree = Tree.adopt(identity, cookie)
    assert (tree.exit_status, tree.members()) == (None, [identity])
    process.send([identity], signal.SIGKILL)
    assert await tree.wait_exit() == process.UNSEEN_STATUS
    assert await tree.kill() == []


async def test_an_adopted_tree_is_stopped_whole() -> None:
    cookie = f"test{RUN}.far.1"
    argv = (sys.executable, "-I", "-S", str(TINY_SERVER), str(free_port()), "setsid-grandchild")
    tree = Tree.adopt(stranger(*argv, who="far", cookie=cookie), cookie)
    await until(lambda: len(carriers("far")) == 2)
    assert await tree.stop(grace_s=5.0) == []
    assert carriers("far") == []


async def test_a_pid_that_was_given_away_is_an_adopted_process_that_ended() -> None:
    with subprocess.Popen([*PYTHON, "import time; time.sleep(600)"]) as other:
        tree = Tree.adopt(Identity(other.pid, 1), f"test{RUN}.gone.1")
        assert await tree.wait_exit() == process.UNSEEN_STATUS
        assert await tree.stop(grace_s=1.0) == []
        assert other.poll() is None
        other.kill()
