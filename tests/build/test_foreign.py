from __future__ import annotations

import os
import sys
from pathlib import Path

import psutil
import pytest

from toolkit.build.foreign import HungError, Patience, run
from toolkit.build.steps import Command
from toolkit.errors import ToolkitError

QUICK = Patience(idle_s=1.0, silent_s=1.5, look_s=0.05)


def python(code: str) -> Command:
    return Command((sys.executable, "-c", code), {"PATH": os.environ["PATH"]})


@pytest.fixture
def log(tmp_path: Path) -> Path:
    (tmp_path / "watched").mkdir()
    return tmp_path / "log"


def start(code: str, log: Path, patience: Patience = QUICK) -> object:
    return run(python(code), log, log.parent, watched=log.parent / "watched", patience=patience)


def test_status_and_output_come_back(log: Path) -> None:
    log.write_text("of an earlier step\n")
    ended = run(python("print('hello'); raise SystemExit(3)"), log, log.parent, watched=log.parent / "watched")
    assert (ended.status, ended.output) == (3, "hello\n")
    assert log.read_text() == "of an earlier step\nhello\n"


def test_a_program_that_sleeps_for_ever_is_a_hang_and_is_ended(log: Path) -> None:
    code = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    with pytest.raises(HungError) as caught:
        start(code, log)
    assert not psutil.pid_exists(int(caught.value.output))


def test_a_program_that_works_without_a_word_is_not_hung_until_silence_is_too_long(log: Path) -> None:
    with pytest.raises(HungError) as caught:
        start("while True: pass", log)
    assert caught.value.seconds > QUICK.silent_s


@pytest.mark.parametrize("sign", ["print('.', flush=True)", "open('watched/file', 'a').write('x')"])
def test_output_and_files_are_signs_of_life(sign: str, log: Path) -> None:
    code = f"import time\nfor _ in range(10):\n    {sign}\n    time.sleep(0.2)\n"
    start(code, log)


def test_a_program_that_is_not_there_is_told(log: Path) -> None:
    with pytest.raises(ToolkitError, match="cannot start"):
        run(Command(("/nowhere",), {}), log, log.parent, watched=log.parent)


def test_what_a_program_leaves_in_its_session_is_ended_with_it(log: Path) -> None:
    code = "import subprocess; print(subprocess.Popen(['sleep', '600']).pid, flush=True)"
    ended = run(python(code), log, log.parent, watched=log.parent / "watched")
    psutil.wait_procs([psutil.Process(int(ended.output))] if psutil.pid_exists(int(ended.output)) else [], timeout=5)
    assert not psutil.pid_exists(int(ended.output)) or psutil.Process(int(ended.output)).status() == "zombie"
