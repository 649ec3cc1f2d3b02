"""An engine that somebody else built: judged by its own config before anything starts, then copied into the store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from packaging.version import InvalidVersion, Version

from toolkit.build import trtllm_guards, trtllm_readback
from toolkit.build.trtllm_builder import PHASE
from toolkit.build.trtllm_readback import EngineConfig
from toolkit.build.trtllm_versions import last_release
from toolkit.config.models import Limits, Recipe
from toolkit.errors import ToolkitError
from toolkit.facts.model import capability
from toolkit.runtimes.trtllm_guards import KV_REUSE, refused_features
from toolkit.store import Entry, Store, fingerprint
from toolkit.store import manifest as manifests

_REBUILD = "Build it again with the release that serves it."


@dataclass(frozen=True)
class Finding:
    """One thing between an engine and where it is to run. An error keeps it from loading, a warning from doing all."""

    id: str
    severity: Literal["error", "warning", "note"]
    what: str
    fix: str | None = None

    def document(self) -> dict[str, str | None]:
        """Its entry in JSON."""
        return {"id": self.id, "severity": self.severity, "what": self.what, "fix": self.fix}


@dataclass(frozen=True)
class Surroundings:
    """Where the engine is to run; None and nothing: not known, and not judged.

    ``release``, ``tensorrt``: of the serving environment. ``capabilities``: of the GPUs it may get. ``settings``: what
    its server is told, as written.
    """

    release: str | None = None
    tensorrt: str | None = None
    capabilities: Sequence[str] = ()
    gpus: int | None = None
    recipe: Recipe | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)


def judge(engine: EngineConfig, known: Mapping[str, Any], around: Surroundings) -> tuple[Finding, ...]:
    """Everything that speaks against serving an engine there. Pure.

    ``known``: what its manifest says beside its config: ``tensorrt`` and ``compute_capability``, where known.
    """
    return tuple(
        finding
        for judged in (
            _whole(engine),
            _releases(engine, around),
            _tensorrt(known.get("tensorrt"), around.tensorrt),
            _gpus(engine, known.get("compute_capability"), around),
            _wanted(engine, around.recipe),
            _settings(engine, around.settings),
        )
        for finding in judged
    )


def _whole(engine: EngineConfig) -> Iterator[Finding]:
    if engine.missing_ranks:
        files = ", ".join(f"rank{rank}.engine" for rank in engine.missing_ranks)
        what = f"engine files are missing or empty: {files} (of {engine.world_size})"
        yield Finding("ranks_missing", "error", what, "Copy the whole folder, or build it again.")
    if extra := [rank for rank in engine.ranks if rank >= engine.world_size]:
        what = f"there are engine files of more ranks ({extra[-1] + 1}) than its config says ({engine.world_size})"
        yield Finding("ranks_extra", "warning", what, "Two builds may be mixed in this folder; build it again.")
    size = engine.plugin("tokens_per_block")
    if engine.kv_cache_type in (None, "paged") and type(size) is int and size & (size - 1):
        what = f"its KV blocks have {size} tokens, which is no power of two: it fails at its first request"
        yield Finding("block_size", "error", what, "Build it again with 'kv_cache: {tokens_per_block: 32}'.")
    if engine.fmha is None:
        yield Finding("fmha_unknown", "note", "its config does not say whether context attention is fused")


def _releases(engine: EngineConfig, around: Surroundings) -> Iterator[Finding]:
    if engine.version is None:
        what = "it does not say which release built it; engines from before 0.8 do not"
        yield Finding("release_unknown", "warning", what)
    if around.release is None:
        return
    served = _version(around.release)
    if served is not None and served > Version(last_release()):
        what = f"TensorRT-LLM {around.release} serves no engines; the last that does is {last_release()}"
        yield Finding(
            "no_engine_mode", "error", what, "Serve the model itself ('model: PATH'), or use an older release."
        )
    elif engine.version is not None and _version(engine.version) != served:
        what = f"TensorRT-LLM {engine.version} built it, and {around.release} is to serve it: plugins differ silently"
        yield Finding("release_differs", "error", what, _REBUILD)


def _version(text: str) -> Version | None:
    try:
        return Version(Version(text).public)
    except InvalidVersion:
        return None


def _tensorrt(built: str | None, there: str | None) -> Iterator[Finding]:
    """TensorRT loads only what the same version wrote, by all four of its numbers."""
    if built and there and _numbers(built) != _numbers(there):
        what = f"TensorRT {built} built it, and {there} is to load it; all numbers must be equal"
        yield Finding("tensorrt_differs", "error", what, _REBUILD)


def _numbers(version: str) -> tuple[int, ...] | str:
    found = _version(version)
    return found.release if found else version


def _gpus(engine: EngineConfig, built: str | None, around: Surroundings) -> Iterator[Finding]:
    there = [known for text in around.capabilities if (known := capability(text)) is not None]
    wanted = capability(built)
    if wanted is None:
        yield Finding("capability_unknown", "note", "for which compute capability it was built is not known")
    elif there and wanted not in there:
        what = f"it was built for compute capability {built}; the GPUs here have {', '.join(around.capabilities)}"
        yield Finding("capability_differs", "error", what, "Build it again on such a GPU.")
    elif there and set(there) != {wanted}:
        what = (
            f"it needs a GPU of compute capability {built}, and not all here have it ({', '.join(around.capabilities)})"
        )
        yield Finding("capability_mixed", "warning", what, "Name the GPUs of its service.")
    if around.gpus is not None and around.gpus != engine.world_size:
        what = f"it needs {engine.world_size} GPUs (tp {engine.tp_size} x pp {engine.pp_size}); it gets {around.gpus}"
        yield Finding("world_size_differs", "error", what, f"Give its service {engine.world_size} GPUs.")


def _wanted(engine: EngineConfig, recipe: Recipe | None) -> Iterator[Finding]:
    if recipe is None:
        return
    for key in ("tp_size", "pp_size"):
        asked, has = getattr(recipe, key), getattr(engine, key)
        if key in recipe.model_fields_set and asked != has:
            yield Finding("mapping_differs", "error", f"{key} is {has}, {asked} is wanted", "Build it again.")
    for name in trtllm_readback.LIMITS:
        asked, has = getattr(recipe.limits, name), engine.limits.get(name)
        if has is None:
            yield Finding("limit_unknown", "note", f"its config does not tell {name}")
        elif has < asked:
            fix = f"Want at most {has}, or build it again: limits are fixed in an engine."
            yield Finding("limit_low", "error", f"{name} is {has}, {asked} is wanted", fix)
    if engine.fmha is not None and engine.fmha != recipe.fmha:
        what = f"context attention is built with 'fmha: {engine.fmha}', 'fmha: {recipe.fmha}' is wanted"
        yield Finding("fmha_differs", "error", what, "Build it again.")
    if recipe.kv_cache.reuse and not trtllm_guards.features(engine)[KV_REUSE]:
        what = "KV cache reuse is wanted, and it was built without paged context attention"
        yield Finding("kv_reuse_impossible", "error", what, "Set 'kv_cache: {reuse: false}', or build it again.")


def _settings(engine: EngineConfig, settings: Mapping[str, Any]) -> Iterator[Finding]:
    for fault in refused_features(trtllm_guards.features(engine), settings):
        yield Finding("needs_paged_context", "error", fault.what, fault.hint)


def adopt(
    folder: Path, store: Store, around: Surroundings, name: str | None = None
) -> tuple[Entry, tuple[Finding, ...]]:
    """The engine in a folder, judged and copied into the store, with what a person should know of it.

    Raises: ToolkitError when it is none, is not whole, or cannot be served there; nothing is adopted then.
    """
    known = manifests.read(folder)
    engine = trtllm_readback.read(folder)
    told = known["build"].get("engine") if known else None
    findings = judge(engine, told if isinstance(told, dict) else {}, around)
    errors = [finding for finding in findings if finding.severity == "error"]
    if errors:
        raise ToolkitError(
            f"this engine cannot be used here: {'; '.join(error.what for error in errors)}",
            str(folder),
            errors[0].fix,
            code="engine_refused",
            findings=[finding.document() for finding in findings],
        )
    document = None if known else _manifest(engine, name or folder.absolute().name)
    return store.adopt(folder, document), findings


def _manifest(engine: EngineConfig, name: str) -> dict[str, Any]:
    """A manifest for a folder that has none: its files as they are now, and what its config says."""
    files = manifests.describe(engine.folder)
    hashes = {relative: row["sha256"] for relative, row in files.items()}
    unfused = engine.fmha == "disable"
    limits = Limits().model_copy(update=dict(engine.limits))
    return {
        "schema": manifests.SCHEMA,
        "name": name,
        "fingerprint": fingerprint({"builder": "trtllm", "adopted": hashes}),
        "seconds": 0.0,
        "build": {
            "builder": "trtllm",
            "adopted": str(engine.folder.absolute()),
            "commands": [],
            "fmha": {"asked": None, "built": engine.fmha, "phase": PHASE, "proof": trtllm_readback.proof(engine)},
            "guards": list(trtllm_guards.for_unfused(limits, None)) if unfused else [],
            "notes": ["adopted: somebody else built it"],
            "engine": {
                **engine.summary(),
                "release": engine.version,
                "tensorrt": None,
                "gpu": None,
                "compute_capability": None,
                "unfused_workspace_bytes": None,
                "features": dict(trtllm_guards.features(engine)),
                "canary_set": None,
            },
        },
        "files": files,
    }
