"""What an engine is, by its own ``config.json``: the builder writes there what it really did. Reads every layout."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toolkit.build.trtllm_options import FUSED, OFF, ON, Chosen
from toolkit.config.models import Limits
from toolkit.errors import ToolkitError
from toolkit.files import read_json

CONFIG = "config.json"
RANK = re.compile(r"(?:.*_)?rank(\d+)\.engine")
LIMITS = ("max_batch_size", "max_input_len", "max_seq_len", "max_num_tokens")
# Whether the GPUs reach each other's memory decides over it, and attention does not depend on it.
MACHINE_DECIDES = ("use_custom_all_reduce",)
_NOTHING_PUBLISHED = "Nothing was published."
_WORDS = {ON: True, OFF: False, "true": True, "false": False}


@dataclass(frozen=True)
class EngineConfig:
    """One engine folder. ``limits``: those that are told; ``version`` None: made before engines said their release.

    ``ranks``: those whose engine files are there, empty ones left out.
    """

    folder: Path
    version: str | None
    architecture: str | None
    dtype: str | None
    tp_size: int
    pp_size: int
    world_size: int
    limits: Mapping[str, int]
    kv_cache_type: str | None
    plugins: Mapping[str, Any]
    ranks: tuple[int, ...]
    quantization: Mapping[str, Any] = field(default_factory=dict)

    @property
    def missing_ranks(self) -> tuple[int, ...]:
        return tuple(rank for rank in range(self.world_size) if rank not in self.ranks)

    def plugin(self, name: str) -> Any:
        """A plugin's setting: a truth for enable and disable, else a word or number; None: not told, or off."""
        value = self.plugins.get(name)
        return _WORDS.get(value.lower(), value) if isinstance(value, str) else value

    @property
    def fmha(self) -> str | None:
        """``enable`` or ``disable``: context attention as built; None when the config does not say."""
        value = self.plugin("context_fmha")
        return {True: ON, False: OFF}.get(value) if isinstance(value, bool) else None

    def summary(self) -> dict[str, Any]:
        """What is kept of it in the manifest."""
        return {
            "trtllm_version": self.version, "architecture": self.architecture, "dtype": self.dtype,
            "tp_size": self.tp_size, "pp_size": self.pp_size, "world_size": self.world_size,
            "limits": dict(self.limits), "kv_cache_type": self.kv_cache_type, "plugin_config": dict(self.plugins),
            "quantization": dict(self.quantization),
        }  # fmt: skip


def read(folder: Path) -> EngineConfig:
    """The engine in a folder: of the layouts since 0.8, and of the one before, which has ``builder_config``.

    Raises: ToolkitError when its config is missing or is none.
    """
    path = folder / CONFIG
    config = read_json(path, hint="Name the folder that trtllm-build wrote.")
    parts = _parts(config) if isinstance(config, dict) else None
    if parts is None:
        hint = "Name the folder that trtllm-build wrote, not a checkpoint or a model."
        raise ToolkitError("this is no config of an engine", str(path), hint, code="not_an_engine")
    model, build, plugins = parts
    mapping = _mapping(model.get("mapping"))
    tp_size, pp_size = (_count(mapping.get(key, model.get(old))) for key, old in _SIZES)
    ranks = _ranks(folder)
    told = any(key in mapping or old in model for key, old in (*_SIZES, ("world_size", "world_size")))
    # A config that does not tell its ranks has those that are there.
    sizes = tp_size * pp_size * _count(mapping.get("cp_size")) if told else len(ranks) or 1
    return EngineConfig(
        folder, _text(config.get("version")), _text(model.get("architecture", model.get("name"))),
        _text(model.get("dtype", model.get("precision"))), tp_size, pp_size,
        _count(mapping.get("world_size"), sizes),
        dict(_limits(build)), _kv_type(build, plugins), plugins, ranks, _quantization(model),
    )  # fmt: skip


_SIZES = (("tp_size", "tensor_parallel"), ("pp_size", "pipeline_parallel"))
_Parts = tuple[Mapping[str, Any], Mapping[str, Any], Mapping[str, Any]]


def _parts(config: Mapping[str, Any]) -> _Parts | None:
    """The model, the build and the plugins of a config, wherever its layout has them."""
    if isinstance(config.get("builder_config"), dict):
        both = config["builder_config"]
        return both, both, _mapping(config.get("plugin_config"))
    build = config.get("build_config")
    if not isinstance(build, dict):
        return None
    plugins = build.get("plugin_config", config.get("plugin_config"))
    return _mapping(config.get("pretrained_config")), build, _mapping(plugins)


def _ranks(folder: Path) -> tuple[int, ...]:
    found = [(RANK.fullmatch(path.name), path) for path in folder.iterdir()]
    return tuple(sorted(int(match[1]) for match, path in found if match and path.stat().st_size > 0))


def _quantization(model: Mapping[str, Any]) -> Mapping[str, Any]:
    """How weights and KV cache are quantised, where either is."""
    told = _mapping(model.get("quantization"))
    return {name: told[name] for name in ("quant_algo", "kv_cache_quant_algo") if told.get(name)}


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _count(value: Any, default: int = 1) -> int:
    return value if type(value) is int and value >= 1 else default


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _limits(build: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    for name in LIMITS:
        if type(value := build.get(name)) is int:
            yield name, value
    lengths = [build.get(name) for name in ("max_input_len", "max_output_len")]
    if type(build.get("max_seq_len")) is not int and all(type(length) is int for length in lengths):
        yield "max_seq_len", sum(length for length in lengths if length is not None)


def _kv_type(build: Mapping[str, Any], plugins: Mapping[str, Any]) -> str | None:
    """``paged``, ``continuous`` or ``disabled``; older engines say only whether it is paged."""
    told = build.get("kv_cache_type")
    if isinstance(told, str):
        return told.rsplit(".", 1)[-1].lower()
    paged = plugins.get("paged_kv_cache")
    return {True: "paged", False: "continuous"}.get(paged) if isinstance(paged, bool) else None


def check_ranks(engine: EngineConfig, world_size: int, why: str | None = None) -> None:
    """Raises ToolkitError when an engine file is missing or empty; ``why``: what the builder said of it."""
    if engine.world_size != world_size:
        what = f"the engine is for {engine.world_size} ranks, the checkpoint for {world_size}"
        raise ToolkitError(what, str(engine.folder), _NOTHING_PUBLISHED, code="engine_incomplete")
    if not engine.missing_ranks:
        return
    files = ", ".join(f"rank{rank}.engine" for rank in engine.missing_ranks)
    raise ToolkitError(
        f"the builder ended, and of {world_size} engine files these are missing or empty: {files}"
        + (f" ({why})" if why else ""),
        str(engine.folder),
        f"The build log says more. {_NOTHING_PUBLISHED}",
        code="engine_incomplete",
        missing=list(engine.missing_ranks),
    )


def check_built(engine: EngineConfig, chosen: Chosen, fmha: str) -> tuple[str, ...]:
    """Notes on what the machine decided otherwise.

    Raises: ToolkitError when the builder did something else than it was told, with or without a warning.
    """
    if engine.fmha is None:
        what = "the engine does not say whether its context attention is fused (plugin_config.context_fmha)"
        raise ToolkitError(what, str(engine.folder / CONFIG), _NOTHING_PUBLISHED, code="refused_fmha")
    found = list(switched(engine, chosen))
    changed = [row for row in found if row[0] not in MACHINE_DECIDES]
    if not changed:
        return tuple(
            f"{name}: asked {asked}, the builder chose {built} for this machine" for name, asked, built in found
        )
    fused = any(name == "context_fmha" for name, _, _ in changed)
    told = "; ".join(f"{name}: asked {asked}, built {built}" for name, asked, built in changed)
    raise ToolkitError(
        f"'fmha: {fmha}' was asked for, but the engine was built otherwise ({told})"
        if fused
        else f"the builder changed what it was told ({told})",
        str(engine.folder / CONFIG),
        f"{_NOTHING_PUBLISHED} The build log may say why; write in 'options' what the builder can keep.",
        code="refused_fmha" if fused or any(f"--{name}" in FUSED for name, _, _ in changed) else "switched",
        switched=[{"option": name, "asked": asked, "built": built} for name, asked, built in changed],
    )


def switched(engine: EngineConfig, chosen: Chosen) -> Iterator[tuple[str, str, str]]:
    """Name, asked and built of each option that is not in the engine as it was written."""
    for option, words in chosen.words.items():
        name = option.removeprefix("--")
        if name in engine.plugins and words and not _same(words[0], engine.plugin(name)):
            yield name, words[0], _shown(engine.plugin(name))
    kind = _asked_kv_type(chosen)
    if kind is not None and engine.kv_cache_type not in (None, kind):
        yield "kv_cache_type", kind, str(engine.kv_cache_type)


def _asked_kv_type(chosen: Chosen) -> str | None:
    if kind := chosen.value("--kv_cache_type"):
        return kind
    return {ON: "paged", OFF: "continuous"}.get(chosen.value("--paged_kv_cache") or "")


def _same(asked: str, built: Any) -> bool:
    if asked == "auto":
        return True
    if asked in (ON, OFF):
        return (built is not None and built is not False) == (asked == ON)
    return asked == str(built)


def _shown(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return ON if value else OFF
    return str(value)


def check_limits(engine: EngineConfig, limits: Limits) -> tuple[str, ...]:
    """Notes on limits that came out otherwise.

    Raises: ToolkitError when a request that the recipe allows would not fit.
    """
    lower = [(name, getattr(limits, name), engine.limits[name]) for name in LIMITS if name in engine.limits]
    lower = [(name, asked, built) for name, asked, built in lower if built < asked]
    # A builder takes no more tokens than a full batch of the longest prompts has.
    refused = [row for row in lower if row[0] != "max_num_tokens" or row[2] < limits.max_input_len]
    if refused:
        told = "; ".join(f"{name}: asked {asked}, built {built}" for name, asked, built in refused)
        raise ToolkitError(
            f"the engine's limits are lower than asked ({told})",
            str(engine.folder / CONFIG),
            f"Write limits that go together. {_NOTHING_PUBLISHED}",
            code="limits",
        )
    return tuple(f"{name} is {built} in the engine, {asked} was asked for" for name, asked, built in lower)


def proof(engine: EngineConfig) -> str:
    """One line: which phase, on which level it is proven, and with what."""
    names = [option.removeprefix("--") for option in FUSED]
    told = ", ".join(f"{name}={str(engine.plugin(name)).lower()}" for name in names if name in engine.plugins)
    return (
        f"context phase, level config: {CONFIG} of the built engine says {told}; "
        "generation keeps its own fused kernels (MMHA, XQA)"
    )
