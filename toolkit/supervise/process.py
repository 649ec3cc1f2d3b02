"""One process tree: started in its own session and control group, found by its cookie, stopped whole, always reaped.

A signal goes only to a process that is in the tree's control group, carries its cookie, belongs to its session, or
stems from one that does, and only while its start time is the one that was seen.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import os
import signal
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from toolkit import processes
from toolkit.errors import ToolkitError
from toolkit.processes import Identity
from toolkit.supervise import logs
from toolkit.supervise.groups import Group

COOKIE_NAME = "COEXIST_COOKIE"
UNSEEN_STATUS = 256  # above every real one: the process was not our child, so nobody told us how it ended
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_QUIET_LOOKS = 2  # without a member: one that forks and ends while /proc is listed leaves a child that is not listed
_UNCLEAR_LOOKS = 5  # while a process in the middle of an exec may still turn out to be one
_libc = ctypes.CDLL(None, use_errno=True)
_direct_children: set[int] = set()  # of this whole process: their exit status belongs to whoever started them


def become_subreaper() -> None:
    """From now on a process whose parent ends inside one of our trees becomes our child, so that it can be reaped."""
    if _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def own_identity() -> Identity:
    """This process."""
    found = processes.stat(os.getpid())
    return found.identity if found else Identity(os.getpid(), 0)


def reap_adopted() -> int:
    """How many ended processes were reaped that came to us from our trees.

    What other code of this process starts in a session of its own cannot be told from these, so it must not.
    """
    own_session, reaped = os.getsid(0), 0
    for pid in set(processes.children(os.getpid())) - _direct_children:
        found = processes.stat(pid)
        if found and found.state == "Z" and found.session != own_session:
            with contextlib.suppress(ChildProcessError):
                reaped += os.waitpid(pid, os.WNOHANG)[0] == pid
    return reaped


def start(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path | None = None,
    stdin: int,
    output: int,
    dies_with_us: bool,
    entrance: int | None = None,
) -> subprocess.Popen[bytes]:
    """A process in its own session with exactly this environment; ``stdin`` and ``output`` are file descriptors.

    ``dies_with_us``: the kernel kills it when we end, however we end. ``entrance``: of the control group it enters.
    Raises: ToolkitError when the program cannot be started.
    """
    try:
        process = subprocess.Popen(
            list(argv),
            env=dict(env),
            cwd=cwd,
            stdin=stdin,
            stdout=output,
            stderr=output,
            start_new_session=True,
            preexec_fn=_before_exec(os.getpid() if dies_with_us else None, entrance),  # noqa: PLW1509 (system calls only)
        )
    except OSError as error:
        raise _cannot_start(argv, cwd, error) from error
    _direct_children.add(process.pid)
    return process


def _before_exec(parent_pid: int | None, entrance: int | None) -> Callable[[], None] | None:
    """What a child does first; None where that is nothing, and no copy of this process is made for it."""
    if parent_pid is None and entrance is None:
        return None

    def hook() -> None:
        if entrance is not None:
            with contextlib.suppress(OSError):  # it is seen afterwards whether it is inside
                os.write(entrance, b"0")
        if parent_pid is not None:
            _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != parent_pid:  # it ended before the line above
                os._exit(1)

    return hook


def _cannot_start(argv: Sequence[str], cwd: Path | None, error: OSError) -> ToolkitError:
    if cwd is not None and not cwd.is_dir():
        return ToolkitError(f"the working folder {cwd} does not exist", hint="Create it.", code="spawn_failed")
    reason = "not found" if error.errno == errno.ENOENT else (error.strerror or str(error))
    return ToolkitError(
        f"cannot start '{argv[0]}': {reason}", hint="Check the program's path and its permissions.", code="spawn_failed"
    )


def poll(process: subprocess.Popen[bytes]) -> int | None:
    """The exit status of a process of ``start`` (negative: the signal), reaped; None while it runs."""
    status = process.poll()
    if status is not None:
        _direct_children.discard(process.pid)
    return status


@dataclass(frozen=True)
class Usage:
    """What a tree holds, and what those alive have done: ``io_bytes`` were read or written, ``disk_bytes`` by disks."""

    resident_bytes: int
    cpu_s: float
    io_bytes: int = 0
    disk_bytes: int = 0


class Main(Protocol):
    """The process at the root of a tree."""

    @property
    def pid(self) -> int: ...

    def status(self) -> int | None:
        """How it ended (negative: the signal); None while it runs."""


@dataclass(frozen=True)
class _Child:
    process: subprocess.Popen[bytes]

    @property
    def pid(self) -> int:
        return self.process.pid

    def status(self) -> int | None:
        return poll(self.process)


@dataclass(frozen=True)
class _Stranger:
    """A process that somebody else started."""

    identity: Identity

    @property
    def pid(self) -> int:
        return self.identity.pid

    def status(self) -> int | None:
        alive = processes.start_time(self.pid) == self.identity.start_ticks
        return None if alive else UNSEEN_STATUS


class Tree:
    """A running process and everything that came from it. Made by ``Tree.spawn`` or ``Tree.adopt``."""

    def __init__(self, main: Main, identity: Identity, cookie: str, group: Group | None = None) -> None:
        self._main = main
        self.identity = identity
        self._cookie = f"{COOKIE_NAME}={cookie}"
        self.group = group
        self.beside: tuple[int, ...] = ()  # the first process of its container, which is no child of ours
        self._known: set[Identity] = set()
        self._exited = asyncio.Event()
        self._status: int | None = None
        self._watch_exit()

    @classmethod
    def spawn(
        cls,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: Path | None,
        log: Path,
        cookie: str,
        *,
        group: Group | None = None,
        outlives_us: bool = False,
    ) -> Tree:
        """The tree of ``argv``, its output appended to ``log``, marked with ``cookie``. Needs a running event loop."""
        marked = {**env, COOKIE_NAME: cookie}
        with contextlib.ExitStack() as opened:
            output = logs.open_append(log)
            opened.callback(os.close, output)
            entrance = _entrance(group, opened)
            process = start(
                argv, env=marked, cwd=cwd, stdin=subprocess.DEVNULL, output=output, dies_with_us=not outlives_us,
                entrance=entrance,
            )  # fmt: skip
        found = processes.stat(process.pid)
        identity = found.identity if found else Identity(process.pid, 0)
        return cls(_Child(process), identity, cookie, _entered(group))

    @classmethod
    def adopt(cls, identity: Identity, cookie: str, group: Group | None = None) -> Tree:
        """The tree of a process that another supervisor started. Needs a running event loop."""
        return cls(_Stranger(identity), identity, cookie, group)

    @property
    def pid(self) -> int:
        return self._main.pid

    @property
    def exit_status(self) -> int | None:
        """Of the main process (negative: the signal that ended it); None while it runs."""
        return self._status

    async def wait_exit(self) -> int:
        """The main process's exit status, once it has ended."""
        await self._exited.wait()
        assert self._status is not None  # noqa: S101 (the event says so)
        return self._status

    def _watch_exit(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            descriptor = os.pidfd_open(self.pid)
        except OSError:  # a kernel or sandbox without pidfd
            self._poller = loop.create_task(self._poll_exit())
            return
        loop.add_reader(descriptor, self._on_exit, descriptor)
        if isinstance(self._main, _Stranger):
            self._note_exit()  # the number may have been given to somebody else before the descriptor was opened

    def _on_exit(self, descriptor: int) -> None:
        asyncio.get_running_loop().remove_reader(descriptor)
        os.close(descriptor)
        self._note_exit()

    async def _poll_exit(self) -> None:
        while not self._note_exit():  # noqa: ASYNC110 (there is no event to wait for)
            await asyncio.sleep(0.02)

    def _note_exit(self) -> bool:
        if self._status is None:
            self._status = self._main.status()
        if self._status is not None:
            self._exited.set()
        return self._status is not None

    def members(self) -> list[Identity]:
        """Everything of the tree that still runs; zombies are not counted."""
        return self._look()[0]

    def _look(self) -> tuple[list[Identity], bool]:
        """The members, and whether one may have been hidden from this look."""
        found = processes.stats()
        leader = next((each.identity for each in found if each.identity.pid == self.pid), self.identity)
        session = self.pid if leader == self.identity else None  # the number was given to somebody else
        grouped = self.group.members() if self.group else frozenset()
        claims = {each.identity.pid: each.identity.pid in grouped or self._claim(each, session) for each in found}
        pids = processes.closure([pid for pid, claim in claims.items() if claim], found) - {os.getpid()}
        alive = [each.identity for each in found if each.identity.pid in pids and not each.dead]
        self._known = set(alive)
        return alive, None in claims.values()

    def _claim(self, found: processes.Stat, session: int | None) -> bool | None:
        """True: it is ours; None: it may be, since a process in the middle of an exec shows no environment."""
        if found.identity == self.identity or found.identity in self._known or found.session == session:
            return True
        if found.kernel or found.dead or found.identity.start_ticks < self.identity.start_ticks:
            return False
        environment = processes.environment(found.identity.pid)
        return None if environment is None else self._cookie.encode() in environment

    def usage(self) -> Usage:
        """Memory, processor time and files of its processes and those ``beside`` it, as far as one look finds them.

        Whoever left its parent is found in the control group, or was among the ``members`` last time.
        """
        pids = {pid for root in (self.pid, *self.beside) for pid in processes.descendants(root)}
        pids |= self.group.members() if self.group else set()
        strays = {each.pid: each for each in self._known if each.pid not in pids}
        found = [each for pid in (*pids, *strays) if (each := processes.stat(pid))]
        ours = [each for each in found if strays.get(each.identity.pid, each.identity) == each.identity]
        moved = [processes.io_bytes(each.identity.pid) for each in ours]
        return Usage(
            sum(each.resident_bytes for each in ours),
            sum(each.cpu_s for each in ours),
            sum(io_bytes for io_bytes, _ in moved),
            sum(disk_bytes for _, disk_bytes in moved),
        )

    async def stop(self, grace_s: float, limit_s: float = 10.0) -> list[Identity]:
        """What could not be ended (normally nothing): TERM to the main process, ``grace_s``, then KILL to all."""
        if not self._note_exit():
            send([self.identity], signal.SIGTERM)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._exited.wait(), grace_s)
        return await self.kill(limit_s)

    async def kill(self, limit_s: float = 10.0) -> list[Identity]:
        """What is still there after ``limit_s`` of KILL (normally nothing). The main process is reaped."""
        loop = asyncio.get_running_loop()
        deadline, pause_s, quiet = loop.time() + limit_s, 0.002, 0
        while True:
            members, unclear = self._kill_seen()
            quiet = 0 if members else quiet + 1
            if quiet >= (_UNCLEAR_LOOKS if unclear else _QUIET_LOOKS):
                break
            if members and loop.time() > deadline:
                return members
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, 0.05)
        if not self._note_exit():
            await self.wait_exit()
        if self.group is not None:
            self.group.remove()
        return []

    def kill_once(self) -> list[Identity]:
        """Sends KILL to every member, and says which there were."""
        return self._kill_seen()[0]

    def _kill_seen(self) -> tuple[list[Identity], bool]:
        if self.group is not None:
            self.group.kill()  # at once and whole; what follows reaps, and finds what was moved to another group
        members, unclear = self._look()
        send(members, signal.SIGKILL)
        reap_adopted()
        self._note_exit()
        return members, unclear


def _entrance(group: Group | None, opened: contextlib.ExitStack) -> int | None:
    if group is None:
        return None
    try:
        descriptor = group.entrance()
    except OSError:
        return None
    opened.callback(os.close, descriptor)
    return descriptor


def _entered(group: Group | None) -> Group | None:
    """The group, when the process or what it left behind is in it; else it is removed."""
    if group is None or group.members():
        return group
    group.remove()
    return None


def send(targets: Iterable[Identity], signum: signal.Signals) -> None:
    """Signals each process that is still the one that was seen."""
    for target in targets:
        try:
            descriptor = os.pidfd_open(target.pid)
        except ProcessLookupError:
            continue
        except OSError:
            descriptor = None
        try:
            _send(target, descriptor, signum)
        finally:
            if descriptor is not None:
                os.close(descriptor)


def _send(target: Identity, descriptor: int | None, signum: signal.Signals) -> None:
    found = processes.stat(target.pid)  # read after the descriptor was opened: it cannot change its meaning any more
    if found is None or found.identity != target:
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if descriptor is None:
            os.kill(target.pid, signum)
        else:
            signal.pidfd_send_signal(descriptor, signum)
