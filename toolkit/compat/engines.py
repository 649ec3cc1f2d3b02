"""Rules about engines: who can load them, whether they are whole, and what their attention was built for."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from toolkit.compat.gpus import severity_of
from toolkit.compat.model import Case, EngineFolder, Hit, Role, named, sm_of
from toolkit.config.models import Recipe
from toolkit.facts.model import AttentionRule, capability, version, within
from toolkit.host.model import Gpu
from toolkit.units import GIB, format_bytes

TRTLLM_RUNTIMES = {"trtllm", "triton"}
_WORDS: dict[str, Any] = {"enable": True, "disable": False}
KNOWN_PARTS = ("pretrained_config", "build_config")
LIMITS = ("max_batch_size", "max_input_len", "max_seq_len", "max_num_tokens", "max_beam_width")
LENGTH_OPTIONS = ("max_model_len", "max-model-len", "max_seq_len", "context_length", "context-length")
REUSE_OPTIONS = ("enable_block_reuse", "enable_kv_cache_reuse", "kv_cache_reuse")
CHUNK_OPTIONS = ("enable_chunked_context", "enable_chunked_prefill")
SHOWN = 4
MAX_RANKS = 4096  # more is a damaged config.json
SAFE_INPUT_TOKENS = 2048  # the bound the fix names; its workspace is small beside any model
UNFUSED_BYTES = 4  # scores and their softmax, 16 bits each


def served(case: Case) -> Iterator[tuple[Role, EngineFolder]]:
    """Each service with the TensorRT-LLM engine folder it serves, where there is one."""
    for role in case.roles:
        name = role.service.engine if role.service and role.runtime in TRTLLM_RUNTIMES else None
        folder = case.surroundings.engines.get(name or "")
        if folder is not None:
            yield role, folder


def _section(engine: EngineFolder, *keys: str) -> Mapping[str, Any]:
    """A nested object of the engine's config.json; {} where there is none."""
    found: Any = engine.config or {}
    for key in keys:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def plugins(engine: EngineFolder) -> Mapping[str, Any]:
    """The plugin configuration as the builder left it, which is what was really built."""
    found = _section(engine, "build_config", "plugin_config") or _section(engine, "plugin_config")
    return {name: _WORDS.get(value, value) if isinstance(value, str) else value for name, value in found.items()}


def stated(engine: EngineFolder, name: str) -> str | None:
    """What the manifest says of the build: ``tensorrt``, ``compute_capability``."""
    manifest = engine.manifest or {}
    build = manifest.get("build")
    places = [manifest, build, build.get("engine") if isinstance(build, Mapping) else None]
    found = next((place[name] for place in places if isinstance(place, Mapping) and place.get(name)), None)
    return str(found) if found is not None else None


def complete(case: Case) -> Iterator[Hit]:
    """Engines with parts missing, unreadable, or of another size than was recorded."""
    for role, engine in served(case):
        missing = _missing(engine)
        if missing:
            more = f" and {len(missing) - SHOWN} more" if len(missing) > SHOWN else ""
            yield _again(case, role, engine, "engine-complete", {"missing": ", ".join(missing[:SHOWN]) + more})
        elif engine.config is not None and (lacks := _foreign(engine.config)):
            yield _again(case, role, engine, "engine-config-schema", {"missing": lacks})


def _missing(engine: EngineFolder) -> list[str]:
    if engine.config_error:
        return [f"config.json {engine.config_error}"]
    wanted = [f"rank{rank}.engine" for rank in range(min(world_size(engine) or 0, MAX_RANKS))]
    gone = [f"{name} is missing" for name in wanted if name not in engine.ranks]
    empty = [f"{name} is empty" for name, size in engine.ranks.items() if size == 0]
    other = [
        f"{name} has {engine.ranks[name]} bytes, recorded were {size}"
        for name, size in engine.recorded.items()
        if name in engine.ranks and engine.ranks[name] != size
    ]
    return [*gone, *empty, *other, *(f"{name} cannot be read" for name in engine.unreadable)]


def _foreign(config: Mapping[str, Any]) -> str | None:
    if isinstance(config.get("builder_config"), Mapping):  # the layout before 0.8, which runtimes still read
        return None
    lacks = [key for key in KNOWN_PARTS if not isinstance(config.get(key), Mapping)]
    if not isinstance(config.get("version"), str):
        lacks.append("version")
    return f"no {', no '.join(lacks)}" if lacks else None


def world_size(engine: EngineFolder) -> int | None:
    """How many ranks the engine was built for; None: it does not say."""
    mapping = _section(engine, "pretrained_config", "mapping")
    found = mapping.get("world_size")
    sizes = [mapping.get(key, 1) for key in ("tp_size", "pp_size", "cp_size")]
    if not isinstance(found, int) and all(isinstance(each, int) for each in sizes):
        found = math.prod(sizes)
    return found if mapping and isinstance(found, int) and found > 0 else None


def releases(case: Case) -> Iterator[Hit]:
    """Engines of another TensorRT-LLM or TensorRT than their runtime."""
    for role, engine in served(case):
        view = case.environments.get(role.environment)
        built = (engine.config or {}).get("version")
        found = view.packages.get("tensorrt-llm") if view else None
        if isinstance(built, str) and found and _differs(built, found):
            yield _again(case, role, engine, "engine-version", {"built": built, "found": found})
        tensorrt, plan = view.packages.get("tensorrt") if view else None, stated(engine, "tensorrt")
        if tensorrt and plan and _differs(plan, tensorrt):
            yield _again(case, role, engine, "engine-tensorrt-version", {"built": plan, "found": tensorrt})


def _again(case: Case, role: Role, engine: EngineFolder, rule: str, values: Mapping[str, object]) -> Hit:
    """An engine that does not fit: where its recipe can build it again, 'up' does, and that is a step."""
    recipe = _recipe(case, role)
    if recipe is not None and (recipe.checkpoint is not None or recipe.model is not None):
        return Hit(rule, engine.name, role.environment, values, severity="warning", effect="step")
    return Hit(rule, engine.name, role.environment, values)


def _differs(built: str, found: str) -> bool:
    """Whether two versions differ in any number that both tell; local parts are no numbers."""
    one, other = version(built), version(found)
    if one is None or other is None:
        return built != found
    shorter = min(len(one.release), len(other.release))
    return one.release[:shorter] != other.release[:shorter] or one.pre != other.pre


def architectures(case: Case) -> Iterator[Hit]:
    """Engines made for another compute capability than their GPUs have."""
    for role, engine in served(case):
        built = capability(stated(engine, "compute_capability"))
        wrong = tuple(gpu for gpu in role.gpus if (sm := sm_of(gpu)) and built and sm != built)
        if not wrong or built is None:
            continue
        fitting = [gpu for gpu in (case.host.gpus if case.host else ()) if sm_of(gpu) == built]
        step = (
            f"Give it {named(tuple(fitting))} (services.{role.name}.gpus: {[gpu.index for gpu in fitting]})"
            if fitting
            else f"Build it again on this host: coexist build CONFIG --engine {engine.name} --force"
        )
        values = {"built": f"{built // 10}.{built % 10}", "found": named(wrong), "step": step}
        yield Hit("engine-compute-capability", engine.name, role.environment, values, severity=severity_of(role, wrong))


def ranks(case: Case) -> Iterator[Hit]:
    """Engines, services and GPUs that count ranks differently."""
    for role, engine in served(case):
        size, mapping = world_size(engine), _section(engine, "pretrained_config", "mapping")
        others = {
            "its service asks for": role.world_size,
            # A service that asks for none is told so by a rule of its own.
            "its service has GPUs": (role.service.gpus.size if role.service else 0) or size,
            "its folder has rank files": len(engine.ranks),
        }
        wrong = [f"{text}: {number}" for text, number in others.items() if size and number != size]
        # An engine's own tp and pp count, so a service that leaves them at 1 has said nothing.
        said = [text for text in wrong if not (text.startswith("its service asks") and role.world_size == 1)]
        if said:
            values = {
                "ranks": size,
                "tp": mapping.get("tp_size", 1),
                "pp": mapping.get("pp_size", 1),
                "other": "; ".join(said),
            }
            yield Hit("engine-world-size", engine.name, role.environment, values, tuple(said))


def limits(case: Case) -> Iterator[Hit]:
    """What a service asks for beyond what its engine was built for; the limits that hold are the evidence."""
    for role, engine in served(case):
        built = _section(engine, "build_config")
        have = {name: built[name] for name in LIMITS if isinstance(built.get(name), int)}
        options = role.service.options if role.service else {}
        for name, limit in have.items():
            wanted = options.get(name)
            if isinstance(wanted, int) and wanted > limit:
                shown = tuple(f"{key} {value}" for key, value in have.items())
                values = {"option": name, "wanted": wanted, "limit": limit}
                yield Hit("engine-limits", role.name, role.environment, values, shown)


def lengths(case: Case) -> Iterator[Hit]:
    """A length that a service asks for beyond the positions of its model; scaled positions are left to the server."""
    for role in case.roles:
        model = case.surroundings.models.get(role.name)
        config = (model.config if model else None) or {}
        limit, options = config.get("max_position_embeddings"), role.service.options if role.service else {}
        for name in LENGTH_OPTIONS if isinstance(limit, int) and not config.get("rope_scaling") else ():
            wanted = options.get(name)
            if isinstance(wanted, int) and isinstance(limit, int) and wanted > limit:
                values = {"option": name, "wanted": wanted, "limit": limit}
                yield Hit("model-length", role.name, role.environment, values)


def divisible(case: Case) -> Iterator[Hit]:
    """A tensor parallel size that does not divide the attention heads of the model: vLLM refuses it, others may pad."""
    for role in case.roles:
        model, size = case.surroundings.models.get(role.name), role.service.tp_size if role.service else 1
        heads = ((model.config if model else None) or {}).get("num_attention_heads")
        if role.runtime == "vllm" and isinstance(heads, int) and heads % size:
            yield Hit("parallel-divides-model", role.name, role.environment, {"heads": heads, "tp": size})


def features(role: Role, engine: EngineFolder | None, recipe: Recipe | None) -> dict[str, bool]:
    """Which features are on that read what other attention calls left behind."""
    options = role.service.options if role.service else {}
    nested = options.get("kv_cache_config")
    cache = nested if isinstance(nested, Mapping) else {}
    build = _section(engine, "build_config") if engine else {}
    draft = build.get("max_draft_len")
    return {
        "KV cache reuse": any(options.get(key) is True or cache.get(key) is True for key in REUSE_OPTIONS)
        or bool(recipe and recipe.kv_cache.reuse),
        "chunked context": any(options.get(key) is True for key in CHUNK_OPTIONS),
        "draft tokens": bool(isinstance(draft, int) and draft > 0) or bool(options.get("speculative_config")),
    }


def attention(case: Case) -> Iterator[Hit]:
    """Fused attention off, or not paged, beside features that need it."""
    for role in case.roles:
        engine, recipe = _engine(case, role), _recipe(case, role)
        on = [name for name, is_on in features(role, engine, recipe).items() if is_on]
        built = plugins(engine) if engine else {}
        off = built.get("context_fmha") is False or _asked_off(role, recipe)
        paged_off = built.get("use_paged_context_fmha") is False
        if off and on:
            yield Hit("fused-attention-off", role.name, role.environment, {"features": ", ".join(on)})
        elif paged_off and "KV cache reuse" in on:
            yield Hit("kv-reuse-paged-fmha", role.name, role.environment)
        if paged_off and not off and "chunked context" in on:
            yield Hit("chunked-context-paged-fmha", role.name, role.environment)
        if off:
            yield from _workspace(role, engine, recipe)


def _engine(case: Case, role: Role) -> EngineFolder | None:
    return case.surroundings.engines.get((role.service.engine if role.service else None) or "")


def _recipe(case: Case, role: Role) -> Recipe | None:
    return case.surroundings.recipes.get((role.service.engine if role.service else None) or "")


def _asked_off(role: Role, recipe: Recipe | None) -> bool:
    return bool(role.service and role.service.fmha == "disable") or bool(recipe and recipe.fmha == "disable")


def _workspace(role: Role, engine: EngineFolder | None, recipe: Recipe | None) -> Iterator[Hit]:
    built = _section(engine, "build_config").get("max_input_len") if engine else None
    tokens = built if isinstance(built, int) else recipe.limits.max_input_len if recipe else None
    heads = _section(engine, "pretrained_config").get("num_attention_heads") if engine else None
    if tokens is not None and tokens > SAFE_INPUT_TOKENS:
        count = heads if isinstance(heads, int) else 32  # the head count of an 8B Llama, where nothing tells it
        per_rank = -(-count // role.world_size)
        values = {
            "tokens": tokens,
            "gib": f"{per_rank * tokens**2 * UNFUSED_BYTES / GIB:.1f}",
            "small_gib": f"{per_rank * SAFE_INPUT_TOKENS**2 * UNFUSED_BYTES / GIB:.1f}",
        }
        yield Hit("fused-attention-workspace", role.name, role.environment, values)


def kernels(case: Case) -> Iterator[Hit]:
    """Attention features that the GPUs of an engine do not have in its release."""
    for role, engine in served(case):
        release = str((engine.config or {}).get("version") or "")
        built = plugins(engine)
        if built.get("use_fp8_context_fmha") is True:
            yield from _fp8(case, role, engine, release)
        if built.get("use_paged_context_fmha") is True:
            yield from _limited(case, role, engine, release, "paged-context", "paged-fmha-architecture")
            yield from _int8(role, engine)


def _fp8(case: Case, role: Role, engine: EngineFolder, release: str) -> Iterator[Hit]:
    yield from _limited(case, role, engine, release, "fp8-context", "fp8-fmha-architecture")
    algorithm = _section(engine, "pretrained_config", "quantization").get("quant_algo")
    allowed = case.facts.fp8_checkpoints
    if algorithm not in allowed.algorithms:
        values = {"algo": algorithm or "not quantised"}
        yield Hit("fp8-fmha-checkpoint", engine.name, role.environment, values, sources=allowed.source)


def _limited(  # noqa: PLR0917
    case: Case, role: Role, engine: EngineFolder, release: str, prefix: str, rule: str
) -> Iterator[Hit]:
    for limit in case.facts.attention:
        if limit.id.startswith(prefix) and within(release, limit.versions):
            bad = tuple(gpu for gpu in role.gpus if _outside(limit, gpu))
            if bad:
                values = {"gpus": named(bad), "release": release, "rule": limit.rule}
                yield Hit(
                    rule, engine.name, role.environment, values, severity=severity_of(role, bad), sources=limit.source
                )


def _outside(limit: AttentionRule, gpu: Gpu) -> bool:
    sm, (lowest, highest) = sm_of(gpu), limit.sm
    return sm is not None and ((lowest is not None and sm < lowest) or (highest is not None and sm > highest))


def _int8(role: Role, engine: EngineFolder) -> Iterator[Hit]:
    algorithm = _section(engine, "pretrained_config", "quantization").get("kv_cache_quant_algo")
    if algorithm == "INT8":
        on = [name for name, is_on in features(role, engine, None).items() if is_on]
        yield Hit("int8-kv-reuse", engine.name, role.environment, {"features": ", ".join(on) or "paged context FMHA"})


def head_sizes(case: Case) -> Iterator[Hit]:
    """Models whose attention has no fused kernel on their GPUs."""
    for role in case.roles:
        view = case.environments.get(role.environment)
        found = view.packages.get("tensorrt-llm") if view else None
        head, kv = _shape(case, role)
        for row in case.facts.head_sizes:
            bad = tuple(gpu for gpu in role.gpus if row.sm[0] <= (sm_of(gpu) or 0) <= row.sm[1])
            shaped = role.runtime in TRTLLM_RUNTIMES and (head, kv) == (row.head_size, row.kv)
            if shaped and bad and within(found, row.versions):
                values = {"head": head, "gpus": named(bad)}
                yield Hit("fmha-head-size", role.name, role.environment, values, sources=row.source)
        if role.runtime in TRTLLM_RUNTIMES and head:
            yield from _unfused(case, role, head, found)


def _unfused(case: Case, role: Role, head: int, found: str | None) -> Iterator[Hit]:
    """GPUs for which a release brings no context kernel at all."""
    release = case.facts.trtllm(found)
    kernels = release.fact("fmha_sm") if release else None
    bad = tuple(gpu for gpu in role.gpus if kernels and sm_of(gpu) not in {None, *kernels.value})
    if kernels and bad:
        values = {"head": head, "gpus": named(bad)}
        evidence = (f"context kernels of {found}: {', '.join(f'sm_{sm}' for sm in kernels.value)} ({kernels.status})",)
        yield Hit("fmha-head-size", role.name, role.environment, values, evidence, sources=kernels.source)


def _shape(case: Case, role: Role) -> tuple[int | None, str | None]:
    """Head size and KV cache quantisation of what a service runs."""
    engine, model = _engine(case, role), case.surroundings.models.get(role.name)
    config = _section(engine, "pretrained_config") if engine else (model.config or {} if model else {})
    options = role.service.options if role.service else {}
    quantised = _section(engine, "pretrained_config", "quantization").get("kv_cache_quant_algo") if engine else None
    asked = options.get("kv_cache_dtype")
    hidden, heads = config.get("hidden_size"), config.get("num_attention_heads")
    derived = hidden // heads if isinstance(hidden, int) and isinstance(heads, int) and heads else None
    head = next((config[key] for key in ("head_dim", "head_size") if isinstance(config.get(key), int)), derived)
    return head, quantised or (asked.upper() if isinstance(asked, str) else None)


def busy_builder(case: Case) -> Iterator[Hit]:
    """GPUs in use while an engine has to be built on them."""
    host = case.host
    for name in case.surroundings.unbuilt if host and not host.recorded else ():
        recipe = case.surroundings.recipes.get(name)
        held = [(gpu, sum(each.used_bytes or 0 for each in gpu.holders)) for gpu in (host.gpus if host else ())]
        busy = tuple(gpu for gpu, used in held if used > GIB)
        if recipe and recipe.builder == "trtllm" and busy and len(busy) == len(held):
            most = max(used for _, used in held)
            yield Hit("build-gpu-busy", name, None, {"gpus": named(busy), "held": format_bytes(most)})


RULES = {
    "engine-complete": complete,
    "engine-version": releases,
    "engine-compute-capability": architectures,
    "engine-world-size": ranks,
    "engine-limits": limits,
    "model-length": lengths,
    "parallel-divides-model": divisible,
    "fused-attention-off": attention,
    "fp8-fmha-architecture": kernels,
    "fmha-head-size": head_sizes,
    "build-gpu-busy": busy_builder,
}
