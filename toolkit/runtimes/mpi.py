"""Ranks started one by one: mpirun around a program, and the wrapper that pins each rank to CPUs of its own. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from toolkit.runtimes.environment import TOKEN
from toolkit.units import format_cpu_list

MPIRUN = "mpirun"
# Ranks that a program starts itself are refused to root unless the environment allows it. Source: mpirun(1) of Open MPI
# 4.1 and 5.0, each with names of its own; read with both.
ALLOW_ROOT = {
    f"{project}_ALLOW_RUN_AS_ROOT{confirm}": "1" for project in ("OMPI", "PRTE") for confirm in ("", "_CONFIRM")
}
# Open MPI 4 makes a folder of this name with a folder for each rank in it, Open MPI 5 files whose names begin with it.
OUTPUT_NAME = "rank"
PIN = Path(__file__).resolve().parents[1] / "affinity" / "pin.py"
# Set by the launcher for each rank, or not the ranks' business.
NOT_PASSED = (TOKEN,)


def ranks(
    argv: Iterable[str],
    count: int,
    *,
    rank_cpus: tuple[tuple[int, ...], ...],
    env: Mapping[str, str],
    output_dir: Path,
    python: Path,
    as_root: bool,
) -> tuple[str, ...]:
    """``argv`` in ``count`` ranks on this machine, the output of each in a file of its own below ``output_dir``.

    mpirun itself binds nothing: each rank pins itself to its part of ``rank_cpus`` before it becomes ``argv``.
    """
    names = sorted(name for name in env if name not in NOT_PASSED)
    return (
        *(MPIRUN, "-n", str(count), "--bind-to", "none", "--oversubscribe"),
        *(("--allow-run-as-root",) if as_root else ()),
        *output(output_dir),
        *(word for name in names for word in ("-x", name)),
        *pinned(argv, rank_cpus, python),
    )


def output(folder: Path) -> tuple[str, ...]:
    """The words that put the output of each rank into a file of its own below ``folder``, which must be there."""
    return ("--output-filename", str(folder / OUTPUT_NAME))


def pinned(argv: Iterable[str], rank_cpus: tuple[tuple[int, ...], ...], python: Path) -> tuple[str, ...]:
    """``argv`` behind the wrapper that takes the CPUs of its rank; one entry is everybody's, none leaves ``argv``."""
    if not rank_cpus:
        return tuple(argv)
    lists = "/".join(format_cpu_list(cpus) for cpus in rank_cpus)
    option = "--cpus" if len(rank_cpus) == 1 else "--ranks"
    return (str(python), "-I", "-S", str(PIN), option, lists, "--", *argv)
