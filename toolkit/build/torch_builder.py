"""``builder: torch``: an engine compiled ahead of time, published only after a fresh process answered with it."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from toolkit.build import guards
from toolkit.build.compilers import Compiler, find_compiler
from toolkit.build.engine import BuiltEngine
from toolkit.build.environment import allowed_cores, step_env
from toolkit.build.fused_attention import Reading, read_package
from toolkit.build.steps import Command, Progress, Report, run_together
from toolkit.build.torch_recipe import TorchRecipe, read
from toolkit.config.load import LoadedRecipe
from toolkit.errors import ToolkitError
from toolkit.files import json_object, read_json, write_atomic
from toolkit.runtimes.builtin import RUN
from toolkit.store import Store
from toolkit.units import GIB

PHASES = ("prefill", "decode")
# One phase beside its weights, its C++ compiler included. Read for 30 layers: 0.8 GiB in the largest process.
_COMPILE_BYTES = 2 * GIB
_CXX_OF_A_DRY_RUN = "g++"


@dataclass(frozen=True)
class Places:
    """Where one build works. ``reference``: the logits that verify compares with, not part of the engine."""

    engine_dir: Path
    reference: Path
    cache_dir: Path


@dataclass(frozen=True)
class Made:
    """What the steps of a build said: of the engine, of its verification, and of reading its packages, by phase."""

    info: Mapping[str, Any]
    verified: Mapping[str, Any]
    readings: Mapping[str, Reading]


def ensure(
    loaded: LoadedRecipe,
    python: Path,
    store: Store,
    *,
    force: bool = False,
    report: Report = lambda line: None,
    device: str | None = None,
    environ: Mapping[str, str] = os.environ,
) -> BuiltEngine:
    """The recipe's engine for this environment, reused or built now.

    Raises: ToolkitError when model, recipe, compiler, disk or the compiled result are not right.
    """
    begin_s = time.monotonic()
    asked = read(loaded, python, environ, device=device, hash_cache=store.hash_cache)
    entry = store.ensure(
        asked.recipe.name,
        asked.fingerprint,
        lambda folder: _build(asked, folder, store.root, report, environ),
        force=force,
        report=report,
    )
    made = entry.build
    return BuiltEngine(
        name=asked.recipe.name,
        builder="torch",
        fingerprint=asked.fingerprint,
        path=entry.path,
        reused=entry.reused,
        seconds=time.monotonic() - begin_s,
        commands=tuple(Command(tuple(row["argv"]), row["env"]) for row in made["commands"]),
        fmha=made["fmha"],
        guards=made["guards"],
        notes=made["notes"],
        info=read_json(entry.path / "engine.json"),
    )


def describe(
    loaded: LoadedRecipe,
    python: Path,
    store: Store,
    *,
    device: str | None = None,
    environ: Mapping[str, str] = os.environ,
) -> BuiltEngine:
    """What ``ensure`` would run, as far as it can be said before it runs; writes nothing."""
    begin_s = time.monotonic()
    asked = read(loaded, python, environ, device=device, hash_cache=None)
    path = store.path_of(asked.fingerprint)
    places = Places(path, path.with_suffix(".reference.npy"), store.root / "cache")
    commands = all_commands(asked, places, environ.get("CXX", _CXX_OF_A_DRY_RUN), environ)
    return BuiltEngine(
        name=asked.recipe.name,
        builder="torch",
        fingerprint=asked.fingerprint,
        path=path,
        reused=store.find(asked.fingerprint) is not None,
        seconds=time.monotonic() - begin_s,
        commands=commands,
        fmha={"asked": asked.recipe.fmha, "built": None, "phase": "prefill+decode", "proof": None},
        guards=_guards(asked, None),
        notes=(
            "a real build works in a staging folder beside the path shown, and takes the first compiler that works",
        ),
    )


def all_commands(
    asked: TorchRecipe, places: Places, cxx: str, environ: Mapping[str, str]
) -> tuple[Command, Command, Command, Command]:
    """The commands of a build, in order: prepare, compile prefill and decode, verify."""
    cores = allowed_cores()
    env = step_env(asked.python, environ, cxx=cxx, cache_dir=places.cache_dir, threads=cores)
    phase_threads = cores // 2 if compile_together(asked.model_dir) else cores
    phase_env = step_env(asked.python, environ, cxx=cxx, cache_dir=places.cache_dir, threads=phase_threads)
    run, folder = (str(asked.python), str(RUN)), ("--engine-dir", str(places.engine_dir))
    settings = [f"{name}={json.dumps(value)}" for name, value in sorted(asked.inductor.items())]
    inductor = [word for setting in settings for word in ("--inductor", setting)]
    prepare = Command((*run, "prepare", *_prepare_flags(asked, places)), env)
    prefill, decode = (Command((*run, "compile", *folder, "--phase", phase, *inductor), phase_env) for phase in PHASES)
    reference = ("--reference", str(places.reference))
    verify = Command((*run, "verify", *folder, "--device", asked.device, *reference), env)
    return prepare, prefill, decode, verify


def _prepare_flags(asked: TorchRecipe, places: Places) -> list[str]:
    recipe, limits = asked.recipe, asked.recipe.limits
    flags = {
        "--model": asked.model_dir,
        "--engine-dir": places.engine_dir,
        "--reference": places.reference,
        "--fmha": recipe.fmha,
        "--dtype": recipe.dtype,
        "--device": asked.device,
        "--max-batch-size": limits.max_batch_size,
        "--max-input-len": limits.max_input_len,
        "--max-seq-len": limits.max_seq_len,
        "--canary-tokens": recipe.canary.max_tokens,
        "--block-tokens": recipe.kv_cache.tokens_per_block,
        "--reuse-prefixes": "on" if recipe.kv_cache.reuse else "off",
    }
    texts = [f"--canary-prompt={recipe.canary.prompt}"]
    if recipe.canary.expected is not None:
        texts.append(f"--canary-expected={recipe.canary.expected}")
    return [word for flag, value in flags.items() for word in (flag, str(value))] + texts


def _build(
    asked: TorchRecipe, folder: Path, root: Path, report: Report, environ: Mapping[str, str]
) -> Mapping[str, Any]:
    """Builds into a staging folder; what is returned becomes part of the manifest."""
    compiler = find_compiler(environ, asked.python)
    for note in compiler.notes:
        report(note)
    logs = root / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    log_path, history = logs / f"{asked.recipe.name}.build.log", logs / f"{asked.recipe.name}.steps.json"
    log_path.write_bytes(b"")
    progress = Progress(report, _last_seconds(history))
    with tempfile.TemporaryDirectory(prefix="coexist-build-") as scratch:
        places = Places(folder, Path(scratch) / "reference.npy", root / "cache")
        commands = all_commands(asked, places, compiler.command, environ)
        made = _run_steps(asked, commands, places, progress, log_path)
    with suppress(ToolkitError):
        write_atomic(history, json.dumps(progress.seconds))
    return _facts(asked, commands, compiler, made)


def _run_steps(
    asked: TorchRecipe, commands: Sequence[Command], places: Places, progress: Progress, log_path: Path
) -> Made:
    prepare, prefill, decode, verify = commands
    (info,) = run_together([prepare], progress, log_path)
    rounds = [[prefill, decode]] if compile_together(asked.model_dir) else [[prefill], [decode]]
    for commands_at_once in rounds:
        run_together(commands_at_once, progress, log_path)
    readings = read_packages(places.engine_dir)
    check_unfused(asked.recipe.fmha, readings)
    (verified,) = run_together([verify], progress, log_path)
    return Made(info, verified, readings)


def compile_together(model_dir: Path) -> bool:
    """Whether both phases may compile at once: there is a core for each, and memory."""
    weights_bytes = sum(path.stat().st_size for path in model_dir.glob("*.safetensors"))
    available_bytes = psutil.virtual_memory().available
    return allowed_cores() > 1 and available_bytes > 2 * (weights_bytes + _COMPILE_BYTES)


def read_packages(engine_dir: Path) -> dict[str, Reading]:
    """By phase what reading its compiled package for fused attention gave.

    Raises: ToolkitError when a package can prove nothing.
    """
    readings = {}
    for phase in PHASES:
        path = engine_dir / f"{phase}.pt2"
        try:
            readings[phase] = read_package(path.read_bytes())
        except ValueError as error:
            raise ToolkitError(f"{error}", str(path), "Build again with --force.", code="package") from None
    return readings


def check_unfused(asked: str, readings: Mapping[str, Reading]) -> None:
    """Raises ToolkitError when fused attention is in a package that must not have it."""
    fused = {phase: reading for phase, reading in readings.items() if reading.fused}
    if asked == "disable" and fused:
        found = "; ".join(f"{phase}: {', '.join(reading.operators)}" for phase, reading in fused.items())
        raise ToolkitError(
            f"'fmha: disable' was asked for, but the compiler put fused attention back ({found})",
            hint="Remove what 'options.inductor' changes. Nothing was published.",
            code="refused_fmha",
            evidence=[f"{phase}: {e.member}: {e.name}" for phase, r in fused.items() for e in r.evidence],
        )


def proof(readings: Mapping[str, Reading]) -> str:
    """One line that says what is in the packages and how much of them was read."""
    parts = []
    for phase, reading in readings.items():
        found = f"calls {', '.join(reading.operators)}" if reading.fused else "no fused attention"
        parts.append(f"{phase}.pt2: {found} ({reading.symbols} symbols and {reading.members} files read)")
    return "; ".join(parts)


def _facts(asked: TorchRecipe, commands: Sequence[Command], compiler: Compiler, made: Made) -> dict[str, Any]:
    fused = {reading.fused for reading in made.readings.values()}
    built = "mixed" if len(fused) > 1 else "enable" if fused == {True} else "disable"
    return {
        "builder": "torch",
        "commands": [{"argv": list(command.argv), "env": dict(command.env)} for command in commands],
        "fmha": {"asked": asked.recipe.fmha, "built": built, "phase": "prefill+decode", "proof": proof(made.readings)},
        "guards": list(_guards(asked, made.info)),
        "notes": [*compiler.notes, *_notes(asked, made.info, built)],
        "compiler": compiler.version,
        "verified": dict(made.verified),
        "engine": dict(made.info),
    }


def _guards(asked: TorchRecipe, info: Mapping[str, Any] | None) -> tuple[Mapping[str, str], ...]:
    if asked.recipe.fmha == "enable":
        return ()
    return guards.for_unfused(asked.recipe.limits.max_input_len, info["unfused_workspace_bytes"] if info else None)


def _notes(asked: TorchRecipe, info: Mapping[str, Any], built: str) -> list[str]:
    canary = info["canary"]
    notes = [f"compiled for {asked.device} in {info['dtype']}; the canary comes from {canary['source']}"]
    if asked.device == "cpu":
        notes.append("it runs on processors with at least this one's instruction sets (engine.json: cpu_features)")
    if canary["tie_at"] is not None:
        notes.append(f"the canary ends before token {canary['tie_at']}, where two tokens are as good as equal")
    if asked.recipe.fmha == "enable" and built != "enable":
        notes.append("fused attention was asked for, but the compiled packages hold none")
    return notes


def _last_seconds(history: Path) -> dict[str, float]:
    known = json_object(history) or {}
    return {step: float(seconds) for step, seconds in known.items() if isinstance(seconds, (int, float))}
