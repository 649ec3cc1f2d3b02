"""The long-lived members of a tree whose death ends the attempt although the process that was started lives on.

They are chosen once, at READY, from what is alive then; what comes and goes later (compilers, forks) is never one.

*Sure* ones end the attempt however they end: the topmost process of each rank, told by a rank variable that its parent
does not have (a launcher such as mpirun gives it to its ranks alone; a rank's own helpers inherit it), and what holds a
GPU. *Likely* ones are workers by looks: they run the same program as the root or as a sibling. A pool may let its
workers go or replace them, so one of these counts only when a signal other than a request to end killed it, and its
parent did not start another one in its place. Well-known helpers of Python and torch never count.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import fcntl
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from toolkit import processes
from toolkit.processes import Identity
from toolkit.supervise.outcome import COMPILERS

# The number of a rank, as Open MPI, PMIx, MPICH, Slurm and torchrun tell it to each; the first that is there counts.
RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID", "RANK", "LOCAL_RANK")
# As they stand in a command line: Python's and torch's own helpers run the same interpreter as a worker.
HELPERS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver", "torch._inductor.compile_worker",
           "compile_worker/__main__.py")  # fmt: skip
_REPLACED_WITHIN_S = 3.0  # gunicorn and its like start the next worker at once
_ASKED_TO_END = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
_POLL_S = 1.0
_PIDFD_GET_INFO, _PIDFD_INFO_EXIT = 0xC040FF0B, 1 << 3  # include/uapi/linux/pidfd.h, Linux 6.15


@dataclass(frozen=True)
class Member:
    """A process of the tree. ``rank``: what its environment says; ``executable``: the file it runs."""

    identity: Identity
    ppid: int
    name: str = ""
    executable: str | None = None
    command: str = ""
    rank: str | None = None


@dataclass(frozen=True)
class Rank:
    """A member that is watched; ``label`` names it in words; not ``sure``: a worker by looks alone."""

    member: Member
    label: str
    sure: bool

    @property
    def identity(self) -> Identity:
        return self.member.identity


@dataclass(frozen=True)
class Death:
    """A rank that ended; ``exit_status`` negative: the signal; None: nobody can tell."""

    rank: Rank
    exit_status: int | None

    def __str__(self) -> str:
        return f"{self.rank.label} (pid {self.rank.identity.pid}) died: {_how(self.exit_status)}"


def _how(exit_status: int | None) -> str:
    if exit_status is None:
        return "it is gone"
    return f"signal {-exit_status}" if exit_status < 0 else f"exit status {exit_status}"


def choose(root: int, members: Iterable[Member], gpu_pids: Collection[int] = ()) -> tuple[Rank, ...]:
    """The members to watch, the root apart: its exit is known anyway. Pure."""
    by_pid = {member.identity.pid: member for member in members}
    leaders = _leaders(by_pid)
    siblings = Counter((member.ppid, member.executable) for member in by_pid.values())
    found = []
    for member in by_pid.values():
        if member.identity.pid == root or member.name in COMPILERS:
            continue
        if leaders.get(member.rank or "") is member:
            found.append(Rank(member, f"rank {member.rank}", sure=True))
        elif member.identity.pid in gpu_pids:
            found.append(Rank(member, f"GPU process '{member.name}'", sure=True))
        elif _is_worker(member, by_pid.get(root), siblings):
            found.append(Rank(member, f"worker '{member.name}'", sure=False))
    return tuple(found)


def _leaders(by_pid: Mapping[int, Member]) -> dict[str, Member]:
    """The process of each rank: the oldest of those whose parent is not of the same rank."""
    found: dict[str, Member] = {}
    for member in sorted(by_pid.values(), key=lambda each: each.identity.start_ticks):
        parent = by_pid.get(member.ppid)
        if member.rank is not None and (parent is None or parent.rank != member.rank):
            found.setdefault(member.rank, member)
    return found


def _is_worker(member: Member, root: Member | None, siblings: Counter[tuple[int, str | None]]) -> bool:
    if member.executable is None or any(helper in member.command for helper in HELPERS):
        return False
    like_root = root is not None and member.executable == root.executable
    return like_root or siblings[member.ppid, member.executable] > 1


def find(
    root: int, pids: Iterable[int], gpu_pids: Collection[int] = (), proc: Path = processes.PROC
) -> tuple[Rank, ...]:
    """The members to watch among these processes. Reads /proc: not for the event loop."""
    return choose(root, filter(None, (_member(pid, proc) for pid in pids)), gpu_pids)


def _member(pid: int, proc: Path) -> Member | None:
    found = processes.stat(pid, proc)
    if found is None or found.dead:
        return None
    try:
        executable: str | None = str((proc / str(pid) / "exe").readlink())
        command = (proc / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        executable, command = None, ""
    rank = _rank_of(processes.environment(pid, proc) or ())
    return Member(found.identity, found.ppid, found.name, executable, command, rank)


def _rank_of(environment: Iterable[bytes]) -> str | None:
    values = dict(variable.decode(errors="replace").partition("=")[::2] for variable in environment)
    return next((values[name] for name in RANK_VARIABLES if values.get(name, "").isdecimal()), None)


async def first_death(
    ranks: Sequence[Rank],
    note: Callable[[str], None],
    counts: Callable[[Death], bool] = lambda _: True,
    replaced_within_s: float = _REPLACED_WITHIN_S,
) -> Death:
    """The first death that ends the attempt; ``note`` is told of those that do not. It may never return.

    ``counts`` is asked at the moment of each death: after the root's own end they are its consequence.
    """
    ended: asyncio.Queue[Death] = asyncio.Queue()

    def tell(death: Death) -> None:
        if counts(death):
            ended.put_nowait(death)

    async with _watched(ranks, tell):
        while True:
            death = await ended.get()
            if death.rank.sure or await _is_loss(death, replaced_within_s):
                return death
            note(f"{death}; it goes on without it")


async def _is_loss(death: Death, replaced_within_s: float) -> bool:
    status = death.exit_status
    if status is None or status >= 0 or -status in _ASKED_TO_END:
        return False
    await asyncio.sleep(replaced_within_s)
    return not await asyncio.to_thread(_has_successor, death.rank.member)


def _has_successor(lost: Member, proc: Path = processes.PROC) -> bool:
    """Whether its parent has started the same program since."""
    born = (_member(pid, proc) for pid in processes.children(lost.ppid, proc))
    return any(
        each.executable == lost.executable and each.identity.start_ticks > lost.identity.start_ticks
        for each in born
        if each is not None
    )


@contextlib.asynccontextmanager
async def _watched(ranks: Iterable[Rank], tell: Callable[[Death], None]) -> AsyncIterator[None]:
    """While the block runs, each rank that ends is told once; no polling where the kernel has pidfds."""
    loop, unwatched = asyncio.get_running_loop(), []
    with contextlib.ExitStack() as stack:
        for rank in ranks:
            descriptor = _open(rank.identity)
            if descriptor is None:
                unwatched.append(rank)
            else:
                stack.enter_context(_reader(loop, descriptor, rank, tell))
        poller = loop.create_task(_poll(unwatched, tell))
        stack.callback(poller.cancel)
        yield


@contextlib.contextmanager
def _reader(
    loop: asyncio.AbstractEventLoop, descriptor: int, rank: Rank, tell: Callable[[Death], None]
) -> Iterator[None]:
    def on_end() -> None:
        loop.remove_reader(descriptor)
        tell(Death(rank, exit_status(rank.identity, descriptor)))

    loop.add_reader(descriptor, on_end)
    try:
        yield
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


def _open(identity: Identity) -> int | None:
    """A pidfd of exactly this process; None: it is gone, or there are none here."""
    try:
        descriptor = os.pidfd_open(identity.pid)
    except OSError:
        return None
    found = processes.stat(identity.pid)
    if found is None or found.identity != identity:
        os.close(descriptor)
        return None
    return descriptor


async def _poll(ranks: Iterable[Rank], tell: Callable[[Death], None]) -> None:
    left = list(ranks)
    while left:
        gone = [each for each in left if processes.start_time(each.identity.pid) != each.identity.start_ticks]
        for rank in gone:
            tell(Death(rank, exit_status(rank.identity, None)))
        left = [each for each in left if each not in gone]
        await asyncio.sleep(_POLL_S)


class _PidfdInfo(ctypes.Structure):
    """``struct pidfd_info``, 64 bytes."""

    _fields_ = (
        ("mask", ctypes.c_uint64),
        ("cgroupid", ctypes.c_uint64),
        ("ids", ctypes.c_uint32 * 11),
        ("exit_code", ctypes.c_int32),
    )


def exit_status(identity: Identity, descriptor: int | None, proc: Path = processes.PROC) -> int | None:
    """How somebody else's child ended: from its zombie, or where its parent was faster, from the kernel; or None."""
    code = _zombie_code(identity, proc)
    if code is None and descriptor is not None:
        code = _reaped_code(descriptor)
    return None if code is None else os.waitstatus_to_exitcode(code)


def _zombie_code(identity: Identity, proc: Path) -> int | None:
    found = processes.stat(identity.pid, proc)
    if found is None or found.identity != identity or not found.dead:
        return None
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int((proc / str(identity.pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()[49])
    return None


def _reaped_code(descriptor: int) -> int | None:
    info = _PidfdInfo(mask=_PIDFD_INFO_EXIT)
    try:
        fcntl.ioctl(descriptor, _PIDFD_GET_INFO, info)
    except OSError:  # a kernel before 6.15
        return None
    return int(info.exit_code) if info.mask & _PIDFD_INFO_EXIT else None
