"""``builder: trtllm``: an engine by trtllm-build, published only when its own config says what was asked."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from toolkit.build import (
    foreign,
    trtllm_canary,
    trtllm_commands,
    trtllm_failures,
    trtllm_guards,
    trtllm_machine,
    trtllm_readback,
)
from toolkit.build import trtllm_recipe as recipes
from toolkit.build.engine import BuiltEngine
from toolkit.build.foreign import PATIENT, Ended, HungError, Patience
from toolkit.build.steps import Command, Report
from toolkit.build.trtllm_checkpoint import CONFIG, find
from toolkit.build.trtllm_commands import Places
from toolkit.build.trtllm_convert import convert
from toolkit.build.trtllm_estimate import (
    Estimate,
    check_disk,
    check_machine,
    check_workspace,
    estimate,
)
from toolkit.build.trtllm_machine import BuildGpu, Machine
from toolkit.build.trtllm_options import Asked, Chosen, choose
from toolkit.build.trtllm_readback import EngineConfig
from toolkit.build.trtllm_versions import BuildRelease, build_release, installed
from toolkit.config.load import LoadedRecipe
from toolkit.errors import ToolkitError
from toolkit.store import Store, fingerprint, hash_files
from toolkit.units import format_bytes, format_duration

PHASE = "context"


@dataclass(frozen=True)
class World:
    """Where a build happens: interpreter, store, machine (None: nothing is known), variables, patience, progress."""

    python: Path
    store: Store
    machine: Machine | None
    environ: Mapping[str, str]
    patience: Patience = PATIENT
    report: Report = lambda line: None

    @property
    def target(self) -> BuildGpu | None:
        return trtllm_machine.target(self.machine)


@dataclass(frozen=True)
class Job:
    """One run of trtllm-build: what is asked, with which options, into which folder, and where it may scribble."""

    asked: Asked
    chosen: Chosen
    folder: Path
    scratch: Path
    log_path: Path
    world: World


def ensure(
    loaded: LoadedRecipe,
    python: Path,
    store: Store,
    *,
    force: bool = False,
    report: Report = lambda line: None,
    machine: Machine | None = None,
    environ: Mapping[str, str] = os.environ,
    patience: Patience = PATIENT,
) -> BuiltEngine:
    """The recipe's engine for this environment and machine, reused or built now.

    Raises: ToolkitError when recipe, release, checkpoint, machine or the built engine are not right; nothing is
    published then.
    """
    begin_s = time.monotonic()
    world = World(python, store, machine, environ, patience, report)
    release = installed(python, environ)
    _check_program(python, release)
    asked, converted = _converted(loaded, release, world)
    chosen = choose(asked)
    files = hash_files(asked.checkpoint.folder, recipes.FILES, store.hash_cache)
    name = recipes.engine_fingerprint(asked, world.target, files)
    entry = store.ensure(
        loaded.model.name,
        name,
        lambda folder: _with_checkpoint(_build(asked, chosen, folder, world, converted), files),
        force=force,
        report=report,
    )
    made = entry.build
    return BuiltEngine(
        loaded.model.name, "trtllm", name, entry.path, entry.reused, time.monotonic() - begin_s,
        tuple(Command(tuple(row["argv"]), row["env"]) for row in made["commands"]),
        made["fmha"], made["guards"], made["notes"], made["engine"],
    )  # fmt: skip


def describe(
    loaded: LoadedRecipe,
    python: Path,
    store: Store,
    *,
    trtllm_version: str | None = None,
    machine: Machine | None = None,
    environ: Mapping[str, str] = os.environ,
) -> BuiltEngine:
    """What ``ensure`` would run; writes nothing. ``trtllm_version``: for a release that need not be installed.

    Raises: ToolkitError as ``ensure`` does for what can be seen beforehand.
    """
    begin_s = time.monotonic()
    world = World(python, store, machine, environ)
    release = build_release(trtllm_version, "--trtllm-version") if trtllm_version else installed(python, environ)
    files = recipes.model_files(loaded, store.root, None) if trtllm_version is None else None
    source = find(loaded, recipes.conversion_folder(loaded, store, release, files))
    asked = Asked(loaded, source.checkpoint, release, trtllm_machine.sm(world.target))
    chosen = choose(asked)
    needed = _needed(asked)
    check_workspace(loaded, needed, trtllm_machine.alike(machine))
    firm = trtllm_version is None and source.conversion is None
    known = recipes.files(source, firm)
    name = recipes.engine_fingerprint(asked, world.target, known)
    path, entry = store.path_of(name), store.find(name)
    cache = recipes.timing_cache(store, release, world.target)
    places = Places(source.checkpoint.folder, path, cache, cache)
    workers = recipes.workers(asked, trtllm_machine.alike(machine))
    build = trtllm_commands.build(asked, chosen, places, python, environ, workers=workers)
    converting = trtllm_commands.conversion(source, source.checkpoint.folder, python, environ)
    return BuiltEngine(
        loaded.model.name, "trtllm", name, path, entry is not None, time.monotonic() - begin_s,
        (*([converting] if converting else []), build),
        {"asked": loaded.model.fmha, "built": None, "phase": PHASE, "proof": None},
        _guards(asked, needed),
        (*chosen.notes, *_foreseen(asked), *_dry_run_notes(firm), *trtllm_machine.notes(machine)),
        entry.build["engine"] if entry else {"checkpoint": _checkpoint(known)} if firm else {},
    )  # fmt: skip


def _foreseen(asked: Asked) -> tuple[str, ...]:
    """What would be missing from the engine for whoever serves it."""
    if (why := trtllm_canary.unrecordable(asked)) is None:
        return ()
    needed = "a service needs 'canary: {prompt: …, expected: …}', or answers of a fused engine of this checkpoint"
    return (f"no right answers will be recorded with it, for {why}: {needed}",)


def _dry_run_notes(firm: bool) -> tuple[str, ...]:
    staged = "a real build works in staging folders beside the paths shown, and takes GPUs that are free"
    if firm:
        return (staged,)
    return (staged, "fingerprint and path are those of a what-if: a real build also counts weights, TensorRT and GPU")


def _check_program(python: Path, release: BuildRelease) -> None:
    program = trtllm_commands.program(python)
    if not program.is_file() or not os.access(program, os.X_OK):
        raise ToolkitError(
            f"there is no trtllm-build beside the interpreter, though TensorRT-LLM {release.version} is installed",
            str(program),
            f"Install it again there: {python} -m pip install --force-reinstall tensorrt-llm=={release.version}",
            code="no_program",
        )


def _converted(loaded: LoadedRecipe, release: BuildRelease, world: World) -> tuple[Asked, tuple[Command, ...]]:
    """The recipe with a checkpoint that is there; what can be refused is refused before it is converted."""
    files = recipes.model_files(loaded, world.store.root, world.store.hash_cache)
    source = find(loaded, recipes.conversion_folder(loaded, world.store, release, files))
    asked = Asked(loaded, source.checkpoint, release, trtllm_machine.sm(world.target))
    choose(asked)
    check_workspace(loaded, _needed(asked), trtllm_machine.alike(world.machine))
    log_path = _fresh_log(world.store, f"{loaded.model.name}.convert.log") if source.conversion else Path(os.devnull)
    checkpoint, ran = convert(
        source, world.python, world.environ, log_path=log_path, patience=world.patience, report=world.report
    )
    return replace(asked, checkpoint=checkpoint), ran


def _needed(asked: Asked) -> Estimate:
    return estimate(asked.checkpoint, asked.recipe.limits, unfused=asked.unfused)


def _guards(asked: Asked, needed: Estimate) -> tuple[Mapping[str, str], ...]:
    return trtllm_guards.for_unfused(asked.recipe.limits, needed.workspace_bytes) if asked.unfused else ()


def _fresh_log(store: Store, name: str) -> Path:
    path = store.root / "logs" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"")
    return path


def _build(asked: Asked, chosen: Chosen, folder: Path, world: World, converted: Sequence[Command]) -> Mapping[str, Any]:
    """Builds into a staging folder; what is returned becomes part of the manifest."""
    for text in _foreseen(asked):
        world.report(f"warning: {text}")
    gpus = trtllm_machine.free_gpus(world.machine)
    needed = _needed(asked)
    workers = check_machine(needed, gpus, world.machine, recipes.workers(asked, gpus))
    check_disk(needed.weights_bytes, folder, "the engine")
    fitted, gpus = trtllm_commands.with_workers(chosen, workers), gpus[:workers]
    log_path = _fresh_log(world.store, f"{asked.recipe.name}.build.log")
    cache = recipes.timing_cache(world.store, asked.release, world.target)
    with _scratch(cache) as scratch:
        job = Job(asked, fitted, folder, scratch, log_path, world)
        places = Places(asked.checkpoint.folder, folder, cache, scratch / cache.name)
        command = trtllm_commands.build(asked, fitted, places, world.python, world.environ, workers=workers, gpus=gpus)
        engine, notes = _check(job, _run(command, job))
        _keep_timing_cache(places)
    right, told = trtllm_canary.record(asked, engine, world.python, world.store, world.report)
    return {
        "builder": "trtllm",
        "commands": [{"argv": list(each.argv), "env": dict(each.env)} for each in (*converted, command)],
        "fmha": _fmha(asked, engine),
        "guards": list(_guards(asked, needed)),
        "notes": [*chosen.notes, *notes, *trtllm_machine.notes(world.machine), told],
        "engine": {**_engine(job, engine, needed), "canary_set": right},
    }


def _with_checkpoint(made: Mapping[str, Any], files: Mapping[str, str]) -> Mapping[str, Any]:
    """The same facts with what tells engines of one checkpoint."""
    return {**made, "engine": {**made["engine"], "checkpoint": _checkpoint(files)}}


def _checkpoint(files: Mapping[str, str]) -> str:
    return fingerprint({"checkpoint": dict(files)})


@contextmanager
def _scratch(cache: Path) -> Iterator[Path]:
    """The working folder of the builder, on the timing cache's file system, with a copy of that cache in it."""
    cache.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".building-", dir=cache.parent, ignore_cleanup_errors=True) as name:
        if cache.is_file():
            shutil.copy2(cache, Path(name) / cache.name)
        yield Path(name)


def _keep_timing_cache(places: Places) -> None:
    """The cache of a good build replaces the one before; it only saves time, so a failure to keep it is none."""
    with suppress(OSError):
        if places.new_cache.is_file() and places.new_cache.stat().st_size:
            places.new_cache.replace(places.timing_cache)


def _run(command: Command, job: Job) -> Ended:
    world_size, report = job.asked.checkpoint.world_size, job.world.report
    report(f"trtllm-build {job.asked.release.version}: {world_size} rank(s); log: {job.log_path}")
    look = _ranks_told(job.folder, world_size, report)
    try:
        ended = foreign.run(
            command, job.log_path, job.scratch, watched=job.folder, patience=job.world.patience, on_poll=look
        )
    except HungError as error:
        raise trtllm_failures.hung(error, trtllm_commands.PROGRAM, job.log_path) from None
    if ended.status != 0:
        there = sum(1 for rank in range(world_size) if _engine_bytes(job.folder, rank))
        ranks = f" with {there} of {world_size} rank engines written"
        disk = job.world.store.root
        raise trtllm_failures.failure(ended, trtllm_commands.PROGRAM, job.log_path, disk, ranks=ranks)
    report(f"trtllm-build: {format_duration(ended.seconds)}")
    return ended


def _ranks_told(folder: Path, world_size: int, report: Report) -> Callable[[], None]:
    """Reports each rank's engine once, when it appears."""
    told: set[int] = set()

    def look() -> None:
        for rank in set(range(world_size)) - told:
            if size := _engine_bytes(folder, rank):
                told.add(rank)
                report(f"rank {rank} of {world_size}: {format_bytes(size)}")

    return look


def _engine_bytes(folder: Path, rank: int) -> int:
    try:
        return (folder / f"rank{rank}.engine").stat().st_size
    except OSError:
        return 0


def _check(job: Job, ended: Ended) -> tuple[EngineConfig, tuple[str, ...]]:
    """The engine as it was built, with notes.

    Raises: ToolkitError when it is not whole, or not what was asked for.
    """
    said = trtllm_failures.said(ended.output)
    if not (job.folder / CONFIG).is_file():
        told = said or f"its last line: {trtllm_failures.root_line(ended.output)}"
        what = f"trtllm-build ended without an engine ({told})"
        raise ToolkitError(what, str(job.log_path), "Nothing was published.", code="engine_incomplete")
    engine = trtllm_readback.read(job.folder)
    trtllm_readback.check_ranks(engine, job.asked.checkpoint.world_size, said)
    notes = (
        *trtllm_readback.check_built(engine, job.chosen, job.asked.recipe.fmha),
        *trtllm_readback.check_limits(engine, job.asked.recipe.limits),
    )
    return engine, (*notes, *_built_notes(engine, ended, job.asked))


def _built_notes(engine: EngineConfig, ended: Ended, asked: Asked) -> Iterator[str]:
    if engine.version not in (None, asked.release.version):
        yield f"the engine says it is of {engine.version}, the environment that it is {asked.release.version}"
    if not asked.unfused and (line := trtllm_failures.fell_back(ended.output)):
        yield f"level log: fused attention is on in the config, but the builder fell back: {line}"


def _fmha(asked: Asked, engine: EngineConfig) -> dict[str, Any]:
    proof = trtllm_readback.proof(engine)
    return {"asked": asked.recipe.fmha, "built": engine.fmha, "phase": PHASE, "proof": proof}


def _engine(job: Job, engine: EngineConfig, needed: Estimate) -> dict[str, Any]:
    """What servers and later checks must know of the engine."""
    gpu, release = job.world.target, job.asked.release
    return {
        **engine.summary(),
        "release": release.version,
        "tensorrt": release.tensorrt,
        "gpu": gpu.name if gpu else None,
        "compute_capability": gpu.compute_capability if gpu else None,
        "unfused_workspace_bytes": needed.workspace_bytes,
        "features": dict(trtllm_guards.features(engine)),
    }
