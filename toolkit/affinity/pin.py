"""Pins this process to CPUs and NUMA nodes, then becomes the program it was given.

Run as a file by any Python 3.8+, with the standard library only::

    python -I -S pin.py [--cpus 0-3 | --ranks 0-1/2-3] [--mem bind:0,1|preferred:0|none] -- PROGRAM [ARGUMENT...]
    python -I -S pin.py --mem bind:0 --check

``--ranks`` holds the CPUs of rank 0, 1, …; which one this is, mpirun or srun says in the environment, and each gets
cache folders of its own below those that its environment names. ``--check`` exits 0 after pinning instead. Exit codes
of its own: 125 cannot pin or wrong usage, 126 the program cannot be executed, 127 it is not found.
"""

from __future__ import annotations

import errno
import os
import signal
import sys

TYPE_CHECKING = False  # typing's own would double the start time
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

CANNOT_PIN, CANNOT_EXECUTE, NOT_FOUND = 125, 126, 127
# linux/mempolicy.h
MPOL_PREFERRED, MPOL_BIND, MPOL_PREFERRED_MANY = 1, 2, 5
MAX_NODES, MAX_NUMBER = 1024, 1 << 16
_WORD_BITS = 64
# set_mempolicy, get_mempolicy: arch/x86/entry/syscalls/syscall_64.tbl, include/uapi/asm-generic/unistd.h
_SYSCALLS = {"x86_64": (238, 239), "aarch64": (237, 236)}
# Open MPI, PMI (MPICH and others), Slurm: the number of a rank among all.
_RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
# Folders that compilers write to; ranks that share one wait for each other's locks. As in runtimes/environment.py.
CACHES = (
    "XDG_CACHE_HOME",
    "CUDA_CACHE_PATH",
    "CUTE_DSL_CACHE_DIR",
    "DG_JIT_CACHE_DIR",
    "FLASHINFER_WORKSPACE_BASE",
    "FLASH_ATTENTION_CUTE_DSL_CACHE_DIR",
    "TORCHINDUCTOR_CACHE_DIR",
    "TORCH_EXTENSIONS_DIR",
    "TRITON_CACHE_DIR",
)
_USAGE = "usage: pin.py [--cpus LIST | --ranks LIST/…] [--mem bind:NODES|preferred:NODES|none] -- PROGRAM [ARGUMENT...]"


class PinError(Exception):
    """Why the process could not be pinned; ``code`` is the errno when the kernel said so."""

    def __init__(self, text: str, code: int = 0) -> None:
        super().__init__(text)
        self.code = code


def main(arguments: list[str]) -> int:
    """The exit code when the program could not be started; on success it does not return."""
    try:
        cpus, policy, command = _parse(arguments)
        if cpus:
            pin_cpus(cpus)
        if policy:
            set_memory_policy(*policy)
    except (PinError, ValueError, ImportError) as error:
        _tell(f"cannot pin: {error}")
        return CANNOT_PIN
    return execute(command) if command else 0


def _parse(arguments: list[str]) -> tuple[set[int], tuple[str, list[int]] | None, list[str]]:
    cpus: set[int] = set()
    policy = None
    rest = list(arguments)
    while len(rest) > 1 and rest[0] in ("--cpus", "--ranks", "--mem"):
        option, value = rest.pop(0), rest.pop(0)
        if option == "--mem":
            policy = _memory(value)
        else:
            cpus = set(numbers(value if option == "--cpus" else _of_this_rank(value)))
    if rest == ["--check"]:
        return cpus, policy, []
    if len(rest) < 2 or rest[0] != "--":
        raise ValueError(_USAGE)
    return cpus, policy, rest[1:]


def _of_this_rank(value: str) -> str:
    lists = value.split("/")
    name = next((name for name in _RANK_VARIABLES if os.environ.get(name, "").isdecimal()), None)
    if name is None:
        raise ValueError(f"none of {', '.join(_RANK_VARIABLES)} says which rank this is")
    rank = int(os.environ[name])
    if rank >= len(lists):
        raise ValueError(f"{name} is {rank}, and there are CPUs for {len(lists)} ranks")
    _take_own_caches(rank)
    return lists[rank]


def _take_own_caches(rank: int) -> None:
    for variable in CACHES:
        if os.environ.get(variable):
            os.environ[variable] = os.path.join(os.environ[variable], f"rank-{rank}")  # noqa: PTH118 (starts faster)


def _memory(value: str) -> tuple[str, list[int]] | None:
    kind, _, nodes = value.partition(":")
    if value == "none":
        return None
    if kind not in ("bind", "preferred"):
        raise ValueError(f"--mem is bind:NODES, preferred:NODES or none, not '{value}'")
    return kind, numbers(nodes)


def numbers(text: str) -> list[int]:
    """The sorted numbers of a kernel list such as ``0-3,8``.

    Raises: ValueError when the text is no such list, or an empty one.
    """
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not first.isdigit() or (dash and not last.isdigit()) or not int(first) <= int(last or first) < MAX_NUMBER:
            raise ValueError(f"'{text}' is not a list such as 0-3,8")
        found.update(range(int(first), int(last or first) + 1))
    return sorted(found)


def as_list(found: Iterable[int]) -> str:
    """The kernel's list of these numbers."""
    ranges: list[list[int]] = []
    for number in sorted(found):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


def pin_cpus(cpus: set[int]) -> None:
    """The mask is exactly these CPUs. The kernel silently drops forbidden ones, so it is read back.

    Raises: PinError when one of them is not allowed here.
    """
    try:
        os.sched_setaffinity(0, cpus)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise PinError(f"sched_setaffinity for CPUs {as_list(cpus)}: {error.strerror}") from error
        raise PinError(f"none of the CPUs {as_list(cpus)} is allowed here") from error
    missing = cpus - os.sched_getaffinity(0)
    if missing:
        raise PinError(f"CPUs {as_list(missing)} are not allowed here")


def set_memory_policy(kind: str, nodes: list[int]) -> None:
    """The NUMA policy of this thread, and of all that the program will start; ``kind`` is bind or preferred.

    Raises: PinError when the kernel or the container refuses.
    """
    if kind == "bind":
        _set_policy(MPOL_BIND, nodes)
        missing = set(nodes) - _policy_nodes()
        if missing:
            raise PinError(f"NUMA nodes {as_list(missing)} are not allowed here")
    elif len(nodes) == 1:
        _set_policy(MPOL_PREFERRED, nodes)
    else:
        _prefer_many(nodes)


def _prefer_many(nodes: list[int]) -> None:
    try:
        _set_policy(MPOL_PREFERRED_MANY, nodes)
    except PinError as error:
        if error.code != errno.EINVAL:
            raise
        _set_policy(MPOL_PREFERRED, nodes[:1])  # kernels before 5.15 prefer one node only


def _set_policy(mode: int, nodes: list[int]) -> None:
    if nodes[-1] >= MAX_NODES:
        raise PinError(f"NUMA node {nodes[-1]}: there are no more than {MAX_NODES}")
    mask = _new_mask()
    for node in nodes:
        mask[node // _WORD_BITS] |= 1 << (node % _WORD_BITS)
    # The kernel reads one bit less than it is told (set_mempolicy(2), BUGS).
    code = _call(0, mode, mask, MAX_NODES + 1)
    if code:
        raise PinError(f"set_mempolicy for NUMA nodes {as_list(nodes)}: {os.strerror(code)}", code)


def _policy_nodes() -> set[int]:
    mask = _new_mask()
    code = _call(1, None, mask, MAX_NODES + 1, None, 0)
    if code:
        raise PinError(f"get_mempolicy: {os.strerror(code)}", code)
    return {node for node in range(MAX_NODES) if mask[node // _WORD_BITS] >> (node % _WORD_BITS) & 1}


def _new_mask() -> Any:
    import ctypes  # noqa: PLC0415  # a Python built without it can still pin CPUs

    return (ctypes.c_uint64 * (MAX_NODES // _WORD_BITS))()


def _call(which: int, *arguments: Any) -> int:
    """0 or the errno of set_mempolicy (``which`` 0) or get_mempolicy (1)."""
    import ctypes  # noqa: PLC0415

    machine = os.uname().machine
    known = _SYSCALLS.get(machine)
    if known is None or sys.maxsize < 1 << 32:
        raise PinError(f"NUMA policies are not known for a {machine} with this Python")
    libc = ctypes.CDLL(None, use_errno=True)
    converted = [ctypes.c_long(value) if isinstance(value, int) else value for value in arguments]
    return ctypes.get_errno() if libc.syscall(ctypes.c_long(known[which]), *converted) == -1 else 0


def execute(command: list[str]) -> int:
    """The exit code when it failed; on success this process is the program, with the environment it was given."""
    # Python ignores these two, and an ignored signal would stay ignored in the program.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    environment = given_environment()
    try:
        os.execvpe(command[0], command, environment)  # noqa: S606  # argv only
    except (FileNotFoundError, NotADirectoryError):
        _tell(f"not found: '{command[0]}' (or the interpreter it names)")
        return NOT_FOUND
    except OSError as error:
        _tell(f"cannot execute '{command[0]}': {error.strerror}")
        return CANNOT_EXECUTE


def given_environment() -> dict[bytes, bytes]:
    """The environment this process was started with: Python itself may have added LC_CTYPE (PEP 538)."""
    try:
        with open("/proc/self/environ", "rb") as file:  # noqa: PTH123  # pathlib would double the start time
            entries = file.read().split(b"\0")
    except OSError:
        return dict(os.environb)
    pairs = (entry.partition(b"=") for entry in entries)
    given = {name: value for name, equals, value in pairs if name and equals}
    return {**given, **{name: os.environb[name] for name in map(str.encode, CACHES) if name in given}}


def _tell(text: str) -> None:
    sys.stderr.write(f"coexist pin: {text}\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
