"""The two commands of an engine: conversion (tensor and pipeline parallelism belong there), then ``trtllm-build``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from toolkit.build.environment import base_env
from toolkit.build.steps import Command
from toolkit.build.trtllm_checkpoint import Source
from toolkit.build.trtllm_machine import BuildGpu
from toolkit.build.trtllm_options import Asked, Chosen

PROGRAM = "trtllm-build"
_OLD_CACHE, _READ_CACHE, _WRITE_CACHE = "--timing_cache", "--input_timing_cache", "--output_timing_cache"


@dataclass(frozen=True)
class Places:
    """Where a build reads and writes. ``timing_cache``: kept between builds; ``new_cache``: what this one writes."""

    checkpoint_dir: Path
    engine_dir: Path
    timing_cache: Path
    new_cache: Path


def program(python: Path) -> Path:
    """``trtllm-build`` of an interpreter's environment."""
    return python.parent / PROGRAM


def conversion(source: Source, output_dir: Path, python: Path, environ: Mapping[str, str]) -> Command | None:
    """The command that converts the model; None when the checkpoint is there."""
    todo = source.conversion
    if todo is None:
        return None
    flags = {
        "--model_dir": todo.model_dir,
        "--output_dir": output_dir,
        "--dtype": todo.dtype,
        "--tp_size": todo.tp_size,
        "--pp_size": todo.pp_size,
    }
    words = [str(word) for flag in flags.items() for word in flag]
    # A conversion needs no GPU, and what serves on one must not find it there.
    return Command((str(python), str(todo.script), *words), base_env(python, environ) | {"CUDA_VISIBLE_DEVICES": ""})


def build(
    asked: Asked,
    chosen: Chosen,
    places: Places,
    python: Path,
    environ: Mapping[str, str],
    *,
    workers: int,
    gpus: Sequence[BuildGpu] = (),
) -> Command:
    """The command that builds the engine."""
    own = () if "--workers" in chosen.words else ("--workers", str(workers))
    argv = (
        str(program(python)),
        *("--checkpoint_dir", str(places.checkpoint_dir)),
        *("--output_dir", str(places.engine_dir)),
        *chosen.argv(),
        *own,
        *_timing_cache(asked, places),
    )
    seen = {"CUDA_VISIBLE_DEVICES": ",".join(gpu.uuid for gpu in gpus)} if gpus else {}
    return Command(argv, base_env(python, environ) | seen)


def _timing_cache(asked: Asked, places: Places) -> tuple[str, ...]:
    if asked.has(_OLD_CACHE):
        return (_OLD_CACHE, str(places.new_cache))
    known = (_READ_CACHE, str(places.timing_cache)) if places.timing_cache.is_file() else ()
    return (*known, _WRITE_CACHE, str(places.new_cache))


def with_workers(chosen: Chosen, workers: int) -> Chosen:
    """The same options with so many workers at most, where the recipe names their number."""
    named = chosen.value("--workers")
    if named is None or int(named) <= workers:
        return chosen
    return replace(chosen, words={**chosen.words, "--workers": (str(workers),)})
