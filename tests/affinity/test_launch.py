from __future__ import annotations

import os
import subprocess
import sys

from toolkit.affinity.launch import wrap
from toolkit.affinity.policy import PIN_FILE, MemoryPolicy

BIND = MemoryPolicy("bind", (0, 1), "because")
NONE = MemoryPolicy("none", (), "because")


def test_the_wrapper_stands_in_front_of_the_whole_command() -> None:
    assert wrap(["server", "--", "-x"], (3, 1, 2), BIND, python="/py") == (
        ("/py", "-I", "-S", str(PIN_FILE), "--cpus", "1-3", "--mem", "bind:0-1", "--", "server", "--", "-x")
    )
    assert wrap(["server"], (0,), NONE, python="/py")[4:] == ("--cpus", "0", "--", "server")
    assert wrap(["server"], (), BIND, python="/py")[4:] == ("--mem", "bind:0-1", "--", "server")


def test_nothing_to_pin_is_no_wrapper() -> None:
    assert wrap(["server"], (), NONE) == wrap(["server"], ()) == ("server",)


def test_a_wrapped_program_is_pinned() -> None:
    cpu = max(os.sched_getaffinity(0))
    program = [sys.executable, "-c", "import os; print(os.sched_getaffinity(0))"]
    assert subprocess.check_output(wrap(program, (cpu,)), text=True).strip() == f"{{{cpu}}}"
