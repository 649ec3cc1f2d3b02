from __future__ import annotations

from pathlib import Path

from toolkit.runtimes import mpi

PYTHON = Path("/env/bin/python")


def test_each_rank_takes_its_own_part() -> None:
    argv = mpi.pinned(("serve", "--x"), ((0, 1), (2, 3)), PYTHON)
    assert argv == (str(PYTHON), "-I", "-S", str(mpi.PIN), "--ranks", "0-1/2-3", "--", "serve", "--x")


def test_one_part_is_everybodys_and_none_changes_nothing() -> None:
    assert mpi.pinned(("serve",), ((2, 3),), PYTHON)[4:6] == ("--cpus", "2-3")
    assert mpi.pinned(("serve",), (), PYTHON) == ("serve",)


def test_the_token_is_not_passed_on() -> None:
    env = {"B": "2", "A": "1", "COEXIST_TOKEN": "secret"}
    argv = mpi.ranks(("serve",), 2, rank_cpus=(), env=env, output_dir=Path("/logs"), python=PYTHON, as_root=True)
    assert argv == (
        *("mpirun", "-n", "2", "--bind-to", "none", "--oversubscribe", "--allow-run-as-root"),
        *("--output-filename", "/logs/rank", "-x", "A", "-x", "B", "serve"),
    )
    assert "secret" not in argv


def test_the_wrapper_is_the_one_that_pins() -> None:
    assert mpi.PIN.is_file()
