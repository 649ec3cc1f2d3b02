from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.build.children import interrupted_once
from toolkit.build.steps import Command, Progress, run_together, unexplained_failure
from toolkit.errors import ToolkitError

PRELUDE = """
import json, os, signal, subprocess, sys, time
fd = int(sys.argv[sys.argv.index("--progress-fd") + 1])
def send(**event): os.write(fd, json.dumps(event).encode() + b"\\n")
"""


def python(code: str, **env: str) -> Command:
    return Command((sys.executable, "-c", PRELUDE + code), {"PATH": os.environ["PATH"], **env})


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "build.log"


def quiet() -> Progress:
    return Progress(lambda line: None, {})


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def wait_until(condition: object, timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_results_come_back_in_the_order_of_the_commands(log: Path) -> None:
    slow = python("time.sleep(0.2); send(result={'n': 1})")
    assert run_together([slow, python("send(result={'n': 2})")], quiet(), log) == [{"n": 1}, {"n": 2}]


def test_a_step_says_what_it_does_and_how_long_it_took_last_time(log: Path) -> None:
    lines: list[str] = []
    progress = Progress(lines.append, {"export": 12.0})
    code = "send(step='export', state='begin'); send(step='export', state='end', seconds=2.5)"
    run_together([python(code)], progress, log)
    assert lines == ["export … (took 12.0 s last time)", "export: 2.5 s"]
    assert progress.seconds == {"export": 2.5}


def test_only_the_environment_given_reaches_a_step(log: Path) -> None:
    code = "send(result={'env': sorted(k for k in os.environ if k != 'LC_CTYPE')})"
    (result,) = run_together([python(code, ONLY="this")], quiet(), log)
    assert result == {"env": ["ONLY", "PATH"]}


def test_output_goes_to_the_log_not_to_the_terminal(log: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run_together([python("print('words of the compiler')")], quiet(), log)
    assert "words of the compiler" in log.read_text()
    assert capfd.readouterr() == ("", "")


def test_an_error_that_a_step_tells_is_raised_whole(log: Path) -> None:
    told = {"what": "wrong", "where": "there", "hint": "fix", "code": "model", "details": {"needed": 3}}
    with pytest.raises(ToolkitError) as caught:
        run_together([python(f"send(error={told!r}); sys.exit(1)")], quiet(), log)
    error = caught.value
    assert (error.what, error.where, error.hint, error.code) == ("wrong", "there", "fix", "model")
    assert error.details == {"needed": 3}


def test_a_step_that_dies_without_a_word_shows_the_last_lines_of_its_log(log: Path) -> None:
    with pytest.raises(ToolkitError, match="exit status 7: the last line") as caught:
        run_together([python("print('the last line', flush=True); sys.exit(7)")], quiet(), log)
    assert caught.value.where == str(log)
    assert "the last line" in caught.value.details["log_tail"]


def test_a_crash_names_its_signal(log: Path) -> None:
    with pytest.raises(ToolkitError, match="SIGSEGV"):
        run_together([python("os.kill(os.getpid(), signal.SIGSEGV)")], quiet(), log)


@pytest.mark.parametrize("line", ["as: x.o: No space left on device", "OSError: [Errno 27] File too large"])
def test_a_full_disk_in_the_log_is_one_clear_error(line: str, log: Path) -> None:
    log.write_text(f"something\n{line}\ncompilation terminated.\n")
    assert unexplained_failure(1, log).code == "no_space"


def test_a_file_size_limit_that_kills_is_one_clear_error(log: Path) -> None:
    log.write_text("")
    assert unexplained_failure(-signal.SIGXFSZ, log).code == "no_space"


def test_when_one_step_fails_the_others_are_stopped_with_their_children(log: Path, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    endless = f"""
child = subprocess.Popen(['sleep', '300'])
open({str(pids)!r} + '.part', 'w').write(f'{{os.getpid()}} {{child.pid}}')
os.rename({str(pids)!r} + '.part', {str(pids)!r})
time.sleep(300)
"""
    failing = f"""
while not os.path.exists({str(pids)!r}): time.sleep(0.02)
sys.exit(3)
"""
    with pytest.raises(ToolkitError, match="exit status 3"):
        run_together([python(endless), python(failing)], quiet(), log)
    for pid in map(int, pids.read_text().split()):
        wait_until(lambda pid=pid: gone(pid))


def test_ctrl_c_leaves_no_process_behind(log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolkit.build.steps._TERM_GRACE_S", 0.2)
    pids = tmp_path / "pids"
    code = f"""
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen(['sleep', '300'])
open({str(pids)!r} + '.part', 'w').write(f'{{os.getpid()}} {{child.pid}}')
os.rename({str(pids)!r} + '.part', {str(pids)!r})
time.sleep(300)
"""
    with interrupted_once(pids):
        run_together([python(code)], quiet(), log)
    for pid in map(int, pids.read_text().split()):
        wait_until(lambda pid=pid: gone(pid))


def test_a_program_that_is_not_there_is_a_clear_error(log: Path) -> None:
    with pytest.raises(ToolkitError, match="cannot start"):
        run_together([Command(("/nowhere/python",), {})], quiet(), log)
