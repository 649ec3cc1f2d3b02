"""What a pinned process is started with: the wrapper in front of its own argv."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from toolkit.affinity.policy import PIN_FILE, MemoryPolicy
from toolkit.units import format_cpu_list


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
