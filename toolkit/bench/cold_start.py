"""Boots a deployment again and again: with empty caches, with filled ones, and with less warm-up than it asks for."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import filelock

from toolkit import __version__, workflow
from toolkit.assemble.launches import Stage
from toolkit.bench import report
from toolkit.bench.boot import boot
from toolkit.config import load
from toolkit.config.models import Warmup
from toolkit.errors import ToolkitError
from toolkit.files import disk_errors, json_object, write_atomic
from toolkit.home import Home
from toolkit.supervise.starting import At, untold

Condition = Literal["cold", "none", "single", "full"]
COLD_BOOTS, COMPARED_BOOTS = 3, 5
Say = Callable[[str], None]
Show = Callable[[dict[str, Any]], None]


def conditions(runs: int, warmup: Warmup | None) -> dict[Condition, int]:
    """How often each condition is booted. ``cold`` has empty caches, the others what the last of those left.

    ``warmup`` names the only mode; else the whole warm-up is set beside none and a single request.
    """
    cold: dict[Condition, int] = {"cold": min(runs, COLD_BOOTS)}
    if warmup is not None:
        return {**cold, warmup: runs}
    compared = min(runs, COMPARED_BOOTS)
    return {**cold, "full": runs, "none": compared, "single": compared}


def cold_start(
    config: Path,
    home: Home,
    *,
    runs: int,
    warmup: Warmup | None,
    fresh: bool,
    timeout_s: float | None,
    load_s: float,
    say: Say,
    show: Show,
    at: At = untold,
) -> dict[str, Any]:
    """The document of ``bench cold-start --json``. What an interrupted run measured is taken up again.

    ``show`` is given it before what was measured is forgotten.

    Raises: ToolkitError as ``up`` does, or when another bench measures it; what was measured until then is kept.
    """
    deployment = load.deployment(config)
    name, asked = deployment.model.name, conditions(runs, warmup)
    with _alone(home.prepared().bench(name), name):
        stage = workflow.prepare(deployment, home, say, at)
        kept = Kept.open(home.bench(name), home.bench_caches(name), _key(config, stage, asked, load_s), fresh)
        if kept.count:
            say(f"goes on after boot {kept.count} of an interrupted run (--fresh begins anew)")
        for number, condition in _missing(asked, kept):
            say(f"boot {kept.count + 1} of {sum(asked.values())}: {condition}, {number + 1} of {asked[condition]}")
            found = asyncio.run(boot(_stage(stage, condition, kept, warmup), timeout_s, load_s, say))
            kept.add(condition, found)
        document = report.document(name, kept.boots, asked)
        show(document)
        kept.close()
        return document


@contextlib.contextmanager
def _alone(folder: Path, name: str) -> Iterator[None]:
    """Nobody else measures the deployment meanwhile: its caches are emptied again and again."""
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = filelock.FileLock(folder.with_name(f"{name}.lock"), timeout=0)
    try:
        lock.acquire()
    except filelock.Timeout:
        hint = "Wait for its end, or interrupt it."
        raise ToolkitError(f"another bench measures '{name}' now", str(folder), hint, code="already_running") from None
    try:
        yield
    finally:
        lock.release()


def _key(config: Path, stage: Stage, asked: dict[Condition, int], load_s: float) -> str:
    """What measurements that are reported together have in common."""
    engines = sorted(engine.fingerprint for engine in stage.engines.values())
    return hashlib.sha256(config.read_bytes() + f"{__version__} {asked} {load_s} {engines}".encode()).hexdigest()


def _missing(asked: dict[Condition, int], kept: Kept) -> list[tuple[int, Condition]]:
    return [(n, name) for name, count in asked.items() for n in range(len(kept.boots.get(name, ())), count)]


def _stage(stage: Stage, condition: Condition, kept: Kept, warmup: Warmup | None) -> Stage:
    """The same plan with the caches and the warm-up of a condition."""
    if condition == "cold":
        kept.empty_caches()
    mode = (warmup or "full") if condition == "cold" else condition
    services = {name: each.model_copy(update={"warmup": mode}) for name, each in stage.deployment.services.items()}
    deployment = stage.deployment.model_copy(update={"services": services})
    return replace(stage, deployment=deployment, home=replace(stage.home, caches=kept.caches))


def _can_be_told(boots: Any) -> bool:
    """Whether a report can be made of them: they may be another coexist's."""
    try:
        report.document("", boots, {})
    except (AttributeError, LookupError, TypeError, ValueError, StopIteration):
        return False
    return True


@dataclass(frozen=True)
class Kept:
    """What was measured so far, on disk after each boot, and the caches of the boots."""

    folder: Path
    caches: Path
    key: str
    boots: dict[str, list[dict[str, Any]]]

    @classmethod
    def open(cls, folder: Path, caches: Path, key: str, fresh: bool) -> Kept:
        """What an interrupted run of the same ``key`` left; nothing when there is none, or with ``fresh``."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = (None if fresh else json_object(folder / "boots.json")) or {}
        boots: dict[str, list[dict[str, Any]]] = found.get("boots", {})
        return cls(folder, caches, key, boots if found.get("key") == key and _can_be_told(boots) else {})

    @property
    def count(self) -> int:
        return sum(len(made) for made in self.boots.values())

    def empty_caches(self) -> None:
        """Leaves the next boot nothing of the boots before it.

        Raises: ToolkitError when something cannot be removed: no boot would be cold.
        """
        with disk_errors(self.caches, "cannot empty the caches of the boots"), contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self.caches)

    def add(self, condition: Condition, found: dict[str, Any]) -> None:
        """Keeps one boot."""
        self.boots.setdefault(condition, []).append(found)
        write_atomic(self.folder / "boots.json", json.dumps({"key": self.key, "boots": self.boots}))

    def close(self) -> None:
        """A finished run is not taken up again."""
        self.empty_caches()
        (self.folder / "boots.json").unlink(missing_ok=True)
