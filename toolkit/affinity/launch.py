"""What a pinned process is started with: the wrapper in front, and thread counts that fit its cores."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from toolkit.affinity.policy import PIN_FILE, MemoryPolicy
from toolkit.host.model import Core
from toolkit.units import format_cpu_list

_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "RAYON_NUM_THREADS",
)


def wrap(
    argv: Sequence[str], cpus: Iterable[int], memory_policy: MemoryPolicy | None = None, python: str = sys.executable
) -> tuple[str, ...]:
    """The argv that pins to these logical CPUs and this policy, then executes ``argv`` in the same process.

    No CPUs: the mask stays. ``python``: any 3.8+; no package of its environment is needed.
    """
    mask = format_cpu_list(cpus)
    cpu_options = ("--cpus", mask) if mask else ()
    memory_options = ("--mem", memory_policy.spec) if memory_policy and memory_policy.kind != "none" else ()
    if not cpu_options and not memory_options:
        return tuple(argv)
    return (python, "-I", "-S", str(PIN_FILE), *cpu_options, *memory_options, "--", *argv)


def threads_env(cpus: Iterable[int], cores: Sequence[Core] = ()) -> dict[str, str]:
    """Thread counts for numeric libraries: one a physical core. CPUs of no known core count as cores of their own."""
    mine = set(cpus)
    known = [core for core in cores if mine & set(core.cpus)]
    alone = mine - {cpu for core in known for cpu in core.cpus}
    count = max(len(known) + len(alone), 1)
    return {variable: str(count) for variable in _THREAD_VARIABLES}
