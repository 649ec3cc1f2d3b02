"""An engine of the store that a deployment names in place of a recipe: found, described as a recipe, and judged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args

from toolkit.build import trtllm_adopt, trtllm_readback
from toolkit.build.engine import BuiltEngine
from toolkit.build.steps import Command
from toolkit.build.trtllm_adopt import Surroundings
from toolkit.config.load import Loaded, LoadedDeployment, LoadedRecipe
from toolkit.config.models import EngineUse, KvCache, Limits, Recipe
from toolkit.errors import ToolkitError
from toolkit.names import suggestion
from toolkit.store import Entry, Store

# As many digits of a fingerprint as nobody takes for a name.
_LEAST_DIGITS = 8
_ADOPT = "'coexist engines adopt DIR' takes one in; 'coexist engines list' shows what there is."


def find(store: Store, wanted: str, where: str) -> Entry:
    """The engine of this name or fingerprint, or of so many first digits of one.

    Raises: ToolkitError when there is none, several, or it is no engine of TensorRT-LLM.
    """
    entries = store.entries()
    by_digits = len(wanted) >= _LEAST_DIGITS
    found = [entry for entry in entries if entry.name == wanted or (by_digits and entry.fingerprint.startswith(wanted))]
    if len(found) != 1:
        raise _not_one(wanted, found, entries, where)
    if found[0].build.get("builder") != "trtllm":
        what = f"engine '{wanted}' is not TensorRT-LLM's"
        raise ToolkitError(what, where, "Name its recipe instead: 'recipe: FILE'.", code="not_trtllm")
    return found[0]


def _not_one(wanted: str, found: Sequence[Entry], entries: Sequence[Entry], where: str) -> ToolkitError:
    if found:
        digits = ", ".join(entry.fingerprint[:16] for entry in found)
        what = f"{len(found)} engines are named '{wanted}'"
        return ToolkitError(what, where, f"Name one by its fingerprint: {digits}.", code="ambiguous_engine")
    near = suggestion(wanted, [entry.name for entry in entries])
    hint = f"{near} {_ADOPT}" if near else _ADOPT
    return ToolkitError(f"the store holds no engine '{wanted}'", where, hint, code="engine_missing")


def recipe(deployment: LoadedDeployment, use: EngineUse, entry: Entry | None) -> LoadedRecipe:
    """What a recipe of this engine would say, by what it was built for; None: an engine that is not here."""
    told: Mapping[str, Any] = entry.build.get("engine", {}) if entry is not None else {}
    fmha = entry.build.get("fmha", {}).get("built") if entry is not None else None
    made = Recipe.model_construct(
        version=1,
        name=entry.name if entry is not None else str(use.adopted),
        builder="trtllm",
        model=use.model,
        tp_size=told.get("tp_size", 1),
        pp_size=told.get("pp_size", 1),
        fmha=fmha or "enable",
        dtype=_known(Recipe, "dtype", told.get("dtype"), "auto"),
        limits=_limits(told.get("limits") or {}),
        kv_cache=_kv_cache(told),
    )
    return Loaded(made, deployment.document)


def _limits(told: Mapping[str, int]) -> Limits:
    defaults = Limits()
    return Limits.model_construct(**{name: told.get(name, getattr(defaults, name)) for name in trtllm_readback.LIMITS})


def _kv_cache(told: Mapping[str, Any]) -> KvCache:
    """Prefixes are shared where the engine can: the canary set shows whether it does so rightly."""
    block = (told.get("plugin_config") or {}).get("tokens_per_block")
    return KvCache.model_construct(
        type=_known(KvCache, "type", told.get("kv_cache_type"), "paged"),
        tokens_per_block=block if isinstance(block, int) else KvCache().tokens_per_block,
        reuse=bool((told.get("features") or {}).get("kv_cache_reuse")),
    )


def _known(model: type[Recipe] | type[KvCache], field: str, value: Any, default: str) -> Any:
    """The value where the field takes it."""
    return value if value in get_args(model.model_fields[field].annotation) else default


def judged(entry: Entry, store: Store, around: Surroundings, where: str) -> BuiltEngine:
    """The engine as it is served, with what a person should know of it there as notes.

    Raises: ToolkitError when its files were touched, or it cannot be served there.
    """
    if faults := store.check(entry):
        hint = "'coexist engines verify' reads all of it; adopt it again."
        raise ToolkitError(f"engine '{entry.name}' is damaged: {faults[0]}", where, hint, code="engine_damaged")
    build = entry.build
    findings = trtllm_adopt.judge(trtllm_readback.read(entry.path), build.get("engine", {}), around)
    errors = [finding for finding in findings if finding.severity == "error"]
    if errors:
        told = "; ".join(error.what for error in errors)
        raise ToolkitError(
            f"engine '{entry.name}' cannot be served here: {told}",
            where,
            errors[0].fix,
            code="engine_refused",
            findings=[finding.document() for finding in findings],
        )
    warnings = tuple(finding.what for finding in findings)
    return BuiltEngine(
        entry.name, "trtllm", entry.fingerprint, entry.path, True, 0.0,
        tuple(Command(tuple(row["argv"]), row["env"]) for row in build.get("commands", ())),
        build["fmha"], build.get("guards", ()),
        (*build.get("notes", ()), *warnings), build["engine"], warnings,
    )  # fmt: skip
