"""The ledger on disk: one file per host and user, read, decided on and replaced under one lock."""

from __future__ import annotations

import secrets
import stat
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from pydantic import ValidationError

from toolkit.errors import ToolkitError
from toolkit.files import disk_errors, read_json, write_atomic
from toolkit.processes import boot_id, lock_holder
from toolkit.reserve import decide, refusal
from toolkit.reserve.decide import World
from toolkit.reserve.model import Grant, Owner, Refusal, Request, State, Totals, owner_is_alive
from toolkit.reserve.runtime_dir import runtime_dir

DEFAULT_WINDOW_S = 900.0  # the PRELOAD window of a server program; its owner extends it while progress is seen
_LOCK_TIMEOUT_S = 30.0
_SCHEMA = 1


def current_world() -> World:
    """This moment of this machine. CLOCK_BOOTTIME: no jump of the wall clock moves it, and it counts sleep."""
    return World(boot_id(), time.clock_gettime(time.CLOCK_BOOTTIME), owner_is_alive)


class Ledger:
    """Grants between deployments. Every method takes the lock, drops what ended, and leaves a whole file.

    The file's mode follows its folder's, without execute and never writable for all: 0600 in a private folder, 0644 in
    root's ``/run/coexist``, 0660 in a folder that an administrator shares with a group (``COEXIST_RUNTIME_DIR``).
    """

    def __init__(
        self, path: Path, world: Callable[[], World] = current_world, lock_timeout_s: float = _LOCK_TIMEOUT_S
    ) -> None:
        self.path = path
        self._world = world
        self._lock_timeout_s = lock_timeout_s

    @classmethod
    def of_this_host(cls) -> Ledger:
        """The ledger that all deployments of this user share.

        Raises: ToolkitError when its folder is not safe to use.
        """
        return cls(runtime_dir() / "ledger.json")

    def grant(
        self,
        owner: Owner,
        request: Request,
        totals: Totals,
        service: str | None = None,
        window_s: float = DEFAULT_WINDOW_S,
    ) -> Grant:
        """The request, now held for the owner; ``window_s`` is how long PRELOAD may take.

        Raises: ToolkitError naming resource, needed, available and holder; then nothing is held.
        """
        return self._grant([self._wish(owner, service, request, window_s)], totals)[0]

    def grant_all(
        self,
        owner: Owner,
        requests: Mapping[str, Request],
        totals: Totals,
        replaced: Sequence[Grant] = (),
    ) -> dict[str, Grant]:
        """The requests of all services, by service, held together or not at all.

        ``replaced``: grants that these take the place of. They stay held until they are released.

        Raises: ToolkitError as ``grant``.
        """
        wishes = [self._wish(owner, service, request, DEFAULT_WINDOW_S) for service, request in requests.items()]
        return dict(zip(requests, self._grant(wishes, totals, replaced), strict=True))

    def keep(self, grant: Grant, process: Owner) -> Grant:
        """The grant, held from now on while its owner or this process lives.

        Raises: ToolkitError when it has run out.
        """
        return self._change(grant, deadline_s=None, kept_by=process)

    def take_over(self, owner: Owner, processes: Collection[decide.Process]) -> dict[str, Grant]:
        """By service, what this owner has from now on: grants of a dead owner that one of these processes keeps."""
        with self._locked() as state:
            inherited = decide.left_to(state, processes, self._world())
            after = decide.changed(state, inherited, owner=owner)
            self._write(after)
            return {grant.service: grant for grant in after.grants if grant.id in inherited and grant.service}

    def release(self, grant: Grant) -> bool:
        """Whether the grant was still held; now it is not."""
        with self._locked() as state:
            if _find(state, grant) is None:
                return False
            self._write(decide.without(state, [grant.id]))
            return True

    def release_all(self, owner: Owner) -> int:
        """How many grants of the owner were held; now none is, but for those that a living process keeps."""
        with self._locked() as state:
            alive = self._world().alive
            mine = (grant for grant in state.grants if grant.owner == owner)
            ids = [grant.id for grant in mine if grant.kept_by is None or not alive(grant.kept_by)]
            self._write(decide.without(state, ids))
            return len(ids)

    def mark_preloaded(self, grant: Grant) -> Grant:
        """The grant, held from now on until it is released or its owner dies.

        Raises: ToolkitError when it has run out.
        """
        return self._redate(grant, None)

    def extend(self, grant: Grant, window_s: float) -> Grant:
        """The grant with ``window_s`` from now to reach PRELOAD; one that has reached it stays as it is.

        Raises: ToolkitError when it has run out.
        """
        return self._redate(grant, self._world().now_s + window_s)

    def grants(self) -> tuple[Grant, ...]:
        """Everything held at this moment."""
        with self._locked() as state:
            return state.grants

    def _wish(self, owner: Owner, service: str | None, request: Request, window_s: float) -> Grant:
        now_s = self._world().now_s
        return Grant(
            id=secrets.token_hex(8),
            owner=owner,
            service=service,
            request=request,
            granted_at_s=now_s,
            deadline_s=now_s + window_s,
        )

    def _grant(self, wishes: list[Grant], totals: Totals, replaced: Sequence[Grant] = ()) -> list[Grant]:
        with self._locked() as state:
            decision = decide.decide(state, wishes, totals, self._world(), [grant.id for grant in replaced])
            if isinstance(decision, Refusal):
                raise refusal.error(decision)
            self._write(decision)
            return wishes

    def _redate(self, grant: Grant, deadline_s: float | None) -> Grant:
        """With another deadline, unless it has none any more."""
        return self._change(grant, only_if=lambda held: held.deadline_s is not None, deadline_s=deadline_s)

    def _change(self, grant: Grant, only_if: Callable[[Grant], bool] = lambda _: True, **facts: Any) -> Grant:
        with self._locked() as state:
            held = _find(state, grant)
            if held is None:
                raise ToolkitError(
                    f"the reservation of deployment '{grant.owner.deployment}' ran out before PRELOAD was reached",
                    f"services.{grant.service}" if grant.service else None,
                    "Start it again, with a longer preload_window if it needs one.",
                    code="reservation_lost",
                )
            if not only_if(held):
                return held
            changed = decide.changed(state, [grant.id], **facts)
            self._write(changed)
            return _find(changed, grant) or held

    @contextmanager
    def _locked(self) -> Iterator[State]:
        """The ledger as it holds now, in a block that one process at a time is in."""
        lock_path = self.path.with_name(self.path.name + ".lock")
        with disk_errors(lock_path, "cannot use the ledger of grants"):
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = FileLock(lock_path, timeout=self._lock_timeout_s, mode=self._mode() & 0o660)
            try:
                lock.acquire()
            except Timeout:
                raise _stuck(lock_path, self._lock_timeout_s) from None
        try:
            yield decide.swept(self._read(), self._world())
        finally:
            lock.release()

    def _read(self) -> State:
        document = read_json(self.path, default=None, hint=_repair(self.path))
        if document is None:
            return State(boot_id=self._world().boot_id)
        schema = document.get("schema_version") if isinstance(document, dict) else None
        if isinstance(schema, int) and schema > _SCHEMA:
            what = f"was written by a newer coexist (schema {schema}; this one reads {_SCHEMA})"
            raise ToolkitError(what, str(self.path), "Update this coexist.", code="ledger_too_new")
        try:
            return State.model_validate(document)
        except ValidationError as error:
            place = ".".join(map(str, error.errors()[0]["loc"]))
            what = f"is damaged: {place or 'the document'}: {error.errors()[0]['msg']}"
            raise ToolkitError(what, str(self.path), _repair(self.path), code="ledger_damaged") from error

    def _write(self, state: State) -> None:
        write_atomic(self.path, state.model_dump_json(indent=1) + "\n", self._mode())

    def _mode(self) -> int:
        return stat.S_IMODE(self.path.parent.stat().st_mode) & 0o664 | 0o600


def _find(state: State, grant: Grant) -> Grant | None:
    return next((held for held in state.grants if held.id == grant.id), None)


def _repair(path: Path) -> str:
    return f"Stop every deployment of this host ('coexist down'), then remove it: rm {path}"


def _stuck(lock_path: Path, waited_s: float) -> ToolkitError:
    pid = lock_holder(lock_path)
    who = f"process {pid}" if pid else "another process"
    what = f"{who} has held the lock of the ledger for {waited_s:.0f} s"
    return ToolkitError(what, str(lock_path), "See whether that process is stopped, and end it.", code="ledger_stuck")
