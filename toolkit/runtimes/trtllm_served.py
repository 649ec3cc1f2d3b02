"""What a TensorRT-LLM service serves: an engine with what its manifest says, or a model in PyTorch mode. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toolkit.config.models import Recipe, Service
from toolkit.errors import ToolkitError
from toolkit.runtimes import program_options, trtllm_built, trtllm_release
from toolkit.runtimes.base import Context
from toolkit.runtimes.generative import DEFAULT_NUM_TOKENS, GRAPH_POOL_BYTES, Sizes, kv_dtype_bytes_of
from toolkit.runtimes.trtllm_guards import CHUNKED_PREFILL, DRAFT_TOKENS, KV_REUSE
from toolkit.runtimes.trtllm_options import Given
from toolkit.runtimes.trtllm_release import Release

# Of trtllm-serve's PyTorch mode.
DEFAULT_BATCH_SIZE, BLOCK_TOKENS = 2048, 32
LIMITS = ("max_batch_size", "max_num_tokens", "max_seq_len")
NONE = dict.fromkeys((KV_REUSE, CHUNKED_PREFILL, DRAFT_TOKENS), False)


@dataclass(frozen=True)
class Served:
    """``folder``: what trtllm-serve is given. ``able``: what may be switched on; None: whatever the release has.

    ``limits``: the engine's own. ``reuse``: whether blocks are to be reused; None: the release decides. ``vanilla``:
    not TensorRT-LLM's own attention kernels.
    """

    mode: str
    folder: Path
    backend: str | None = None
    tokenizer: Path | None = None
    limits: Mapping[str, int] = field(default_factory=dict)
    able: Mapping[str, bool] | None = None
    reuse: bool | None = None
    vanilla: bool = False

    @property
    def is_engine(self) -> bool:
        return self.mode == trtllm_release.ENGINE


def served(context: Context, release: Release) -> Served:
    """The engine or model of a service.

    Raises: ToolkitError when this release cannot serve it, or it is not what the service asks for.
    """
    return _engine(context, release) if context.service.engine is not None else _model(context, release)


def _engine(context: Context, release: Release) -> Served:
    where = f"services.{context.name}"
    backend = _engine_backend(release, where)
    told, recipe = context.engine_manifest or {}, context.recipe
    if recipe is not None and recipe.builder != "trtllm":
        what = f"runtime 'trtllm' serves engines of 'builder: trtllm', not of '{recipe.builder}'"
        raise ToolkitError(what, f"{where}.engine", f"Write 'runtime: {recipe.builder}'.", code="unsupported")
    _check_release(told, release, f"{where}.environment")
    for fault in trtllm_built.fmha_faults(context, told):
        raise fault
    for key in ("tp_size", "pp_size"):
        _check_size(context, key, _built_size(key, told, recipe))
    able = told.get("features") or (NONE if recipe is not None and recipe.fmha == "disable" else None)
    wanted = recipe.kv_cache.reuse if recipe is not None else True
    return Served(
        mode=trtllm_release.ENGINE,
        folder=context.engine_dir or Path("engine"),
        backend=backend,
        tokenizer=_tokenizer(context),
        limits=_limits(told, recipe),
        able=able,
        reuse=wanted and (able is None or able.get(KV_REUSE, False)),
    )


def _tokenizer(context: Context) -> Path | None:
    """The folder of the recipe's model; None: the recipe names none."""
    recipe, program = context.recipe, context.program
    if context.tokenizer_dir is not None or recipe is None or recipe.model is None:
        return context.tokenizer_dir
    if program is not None and program.origin == "installed":
        raise ToolkitError(
            f"the model of its recipe is not there ('{recipe.model}'), and trtllm-serve takes the tokenizer from it",
            f"services.{context.name}.engine",
            "Put the folder back, or name another one in the recipe.",
            code="no_tokenizer",
        )
    return recipe.model


def check_tokenizer(context: Context, served: Served, given: Given) -> None:
    """Raises ToolkitError when nothing tells the tokenizer of an engine, which has none in its folder.

    A recipe that is not here (a plan for another machine) may tell it.
    """
    told = context.recipe is None or served.tokenizer is not None or "tokenizer" in given.values
    if served.is_engine and not told:
        raise ToolkitError(
            "nothing tells the tokenizer of its engine",
            f"services.{context.name}.engine",
            "Name 'model' in its recipe (or beside 'adopted'), or write 'options: {tokenizer: FOLDER}'.",
            code="no_tokenizer",
        )


def _engine_backend(release: Release, where: str) -> str | None:
    modes = release.modes
    try:
        if modes is None or trtllm_release.ENGINE in modes:
            return release.backend(trtllm_release.ENGINE)
    except LookupError:
        pass
    raise ToolkitError(
        f"TensorRT-LLM {release.version} serves no engines: its engine mode was removed",
        f"{where}.engine",
        "Write 'model: PATH' instead of 'engine:' (PyTorch mode), or name an environment with an older release.",
        code="no_engine_mode",
    )


def _check_release(told: Mapping[str, Any], release: Release, where: str) -> None:
    built = trtllm_built.release(told)
    if built is None or release.assumed or built == release.version:
        return
    raise ToolkitError(
        f"the engine was built by TensorRT-LLM {built}, and {release.version} is to serve it: plugins differ silently",
        where,
        "Build and serve it in the same environment.",
        code="release_differs",
    )


def _built_size(key: str, told: Mapping[str, Any], recipe: Recipe | None) -> int | None:
    """What the engine is divided by; None: that of its checkpoint, which is not known before it is built."""
    if isinstance(told.get(key), int):
        return int(told[key])
    if recipe is None or (recipe.checkpoint is not None and key not in recipe.model_fields_set):
        return None
    return int(getattr(recipe, key))


def _check_size(context: Context, key: str, built: int | None) -> None:
    asked = getattr(context.service, key)
    if built is not None and asked != built:
        raise ToolkitError(
            f"its engine is built for {key} {built}, the service has {key} {asked}",
            f"services.{context.name}.{key}",
            f"Write '{key}: {built}' and as many GPUs, or build another engine.",
            code="world_size",
        )


def _limits(told: Mapping[str, Any], recipe: Recipe | None) -> dict[str, int]:
    own = recipe.limits.model_dump() if recipe is not None else {}
    built = told.get("limits")
    return {**own, **(built if isinstance(built, Mapping) else {})}


def _model(context: Context, release: Release) -> Served:
    where, service = f"services.{context.name}", context.service
    modes = release.modes
    try:
        if modes is not None and trtllm_release.PYTORCH not in modes:
            raise LookupError(trtllm_release.PYTORCH)
        backend = release.backend(trtllm_release.PYTORCH)
    except LookupError:
        raise ToolkitError(
            f"trtllm-serve {release.version} has no PyTorch mode: of a model it would build an engine at each start",
            f"{where}.model",
            "Write a recipe (builder: trtllm) and 'engine: NAME', whose engine is checked; or use a newer release.",
            code="no_pytorch_mode",
        ) from None
    vanilla = service.attention == "vanilla"
    if vanilla and release.llm_arg("attn_backend") is None:
        raise ToolkitError(
            f"trtllm-serve {release.version} takes no options file, so its attention cannot be chosen",
            f"{where}.attention",
            "Write 'attention: auto', or name an environment with a newer release.",
            code="unsupported",
        )
    folder = context.model_dir or Path("model")
    if vanilla:
        return Served(trtllm_release.PYTORCH, folder, backend, able=NONE, reuse=False, vanilla=True)
    return Served(trtllm_release.PYTORCH, folder, backend)


def sizes(service: Service, positions: int | None) -> Sizes:
    """What the options of a model in PyTorch mode say of its sizes; ``positions``: what the model was made for."""
    options, count = service.options, program_options.count_of
    tokens = count(options, "max_num_tokens") or DEFAULT_NUM_TOKENS
    # Its attention without own kernels has blocks of a whole step.
    block = tokens if service.attention == "vanilla" else BLOCK_TOKENS
    return Sizes(
        max_seq_len=count(options, "max_seq_len") or positions,
        max_num_tokens=tokens,
        max_batch_size=count(options, "max_batch_size") or DEFAULT_BATCH_SIZE,
        tokens_per_block=block,
        kv_dtype_bytes=kv_dtype_bytes_of(options),
        graph_pool_bytes=GRAPH_POOL_BYTES,
    )


def check_limits(context: Context, served: Served, given: Given) -> None:
    """Raises ToolkitError when an option asks for more than the engine was built for."""
    for name, asked in _over(served, given):
        raise ToolkitError(
            f"{name} {asked} is over the engine's own, {served.limits[name]}",
            f"services.{context.name}.options.{name}",
            f"Write at most {served.limits[name]}, or build an engine with higher limits.",
            code="limits",
        )


def _over(served: Served, given: Given) -> Iterator[tuple[str, int]]:
    for name in LIMITS:
        asked = given.count(name)
        if served.is_engine and asked is not None and asked > served.limits.get(name, asked):
            yield name, asked


def check_experts(context: Context, given: Given) -> None:
    """Raises ToolkitError when the experts cannot be divided among the ranks."""
    ep_size, tp_size = given.count("ep_size"), context.service.tp_size
    if ep_size is not None and (ep_size < 1 or tp_size % ep_size):
        raise ToolkitError(
            f"ep_size {ep_size} does not divide tp_size {tp_size}",
            f"services.{context.name}.options.ep_size",
            "Experts are divided among the ranks of one tensor-parallel group.",
            code="world_size",
        )
