from __future__ import annotations

import os
import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st

from toolkit.affinity.launch import threads_env, wrap
from toolkit.affinity.policy import PIN_FILE, MemoryPolicy
from toolkit.host.model import Core

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


def test_threads_are_one_a_physical_core() -> None:
    cores = [Core(cpus=(0, 4)), Core(cpus=(1, 5)), Core(cpus=(2, 6))]
    assert set(threads_env((0, 4, 1, 5), cores).values()) == {"2"}
    assert threads_env((0, 1), cores)["OMP_NUM_THREADS"] == "2"
    assert threads_env((4, 9), cores)["MKL_NUM_THREADS"] == "2"
    assert threads_env((0, 4))["OPENBLAS_NUM_THREADS"] == "2"


@given(st.sets(st.integers(0, 15)), st.integers(1, 2))
def test_there_are_never_more_threads_than_cpus_and_never_none(cpus: set[int], siblings: int) -> None:
    cores = [Core(cpus=tuple(range(first, first + siblings))) for first in range(0, 16, siblings)]
    count = int(threads_env(cpus, cores)["OMP_NUM_THREADS"])
    assert 1 <= count <= max(len(cpus), 1)
    assert count * siblings >= len(cpus)
