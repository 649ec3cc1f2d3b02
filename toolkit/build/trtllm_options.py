"""Which options of ``trtllm-build`` an engine gets, and with what words. Pure: recipe, checkpoint and release decide.

Every attention option that the release has is written out, because defaults changed between releases, and with a value
that the builder keeps: one that it would switch (with no more than a warning) is never asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from toolkit.build.trtllm_checkpoint import Checkpoint
from toolkit.build.trtllm_versions import BuildRelease
from toolkit.build.trtllm_words import Given, given
from toolkit.config.load import LoadedRecipe
from toolkit.config.models import Recipe
from toolkit.errors import ManyFaultsError, ToolkitError
from toolkit.facts import load
from toolkit.facts.model import within
from toolkit.facts.options import build_tables

ON, OFF = "enable", "disable"
# Fused attention of the context phase under another name: each of these would bring it back.
FUSED = (
    "--context_fmha",
    "--use_paged_context_fmha",
    "--use_fp8_context_fmha",
    "--use_context_fmha_for_generation",
    "--context_fmha_fp32_acc",
    "--bert_context_fmha_fp32_acc",
)
DRAFTS = ("--speculative_decoding_mode", "--max_draft_len")
_FP8_WEIGHTS = ("FP8", "W4A8_AWQ", "NVFP4")
_KV_TYPE, _PAGED_KV = "--kv_cache_type", "--paged_kv_cache"
_DTYPES = ("float16", "bfloat16", "float32")


@dataclass(frozen=True)
class Asked:
    """All that decides over the options. ``sm``: the GPU's compute capability as a number; None: unknown."""

    loaded: LoadedRecipe
    checkpoint: Checkpoint
    release: BuildRelease
    sm: int | None = None

    @property
    def recipe(self) -> Recipe:
        return self.loaded.model

    @property
    def unfused(self) -> bool:
        return self.recipe.fmha == OFF

    def has(self, name: str) -> bool:
        return name in self.release.table.options


@dataclass(frozen=True)
class Chosen:
    """Options by name in the order they are written, with the words of their values; a flag has none."""

    words: Mapping[str, tuple[str, ...]]
    notes: tuple[str, ...] = ()

    def argv(self) -> tuple[str, ...]:
        """The words of the command line."""
        return tuple(word for name, words in self.words.items() for word in (name, *words))

    def value(self, name: str) -> str | None:
        """What an option with one value is set to; None: it is not written, or a flag."""
        words = self.words.get(name, ())
        return words[0] if words else None


def choose(asked: Asked) -> Chosen:
    """The options of this build.

    Raises: ManyFaultsError with everything in the recipe that the release or its rules refuse.
    """
    own, faults = given(asked.loaded, asked.release)
    faults = [*faults, *_recipe_faults(asked)]
    values = {**_limits(asked), **_attention(asked, own), **{name: each.value for name, each in own.items()}}
    faults += list(_rule_faults(asked, values, own))
    if faults:
        raise ManyFaultsError(tuple(faults))
    words = {name: own[name].words if name in own else (value or "",) for name, value in values.items()}
    return Chosen(words, tuple(_notes(asked, values)))


def _limits(asked: Asked) -> dict[str, str | None]:
    limits = asked.recipe.limits
    values: dict[str, str | None] = {
        "--max_batch_size": str(limits.max_batch_size),
        "--max_input_len": str(limits.max_input_len),
    }
    if asked.has("--max_seq_len"):
        values["--max_seq_len"] = str(limits.max_seq_len)
    else:
        values["--max_output_len"] = str(max(1, limits.max_seq_len - limits.max_input_len))
    return {**values, "--max_num_tokens": str(limits.max_num_tokens)}


def _attention(asked: Asked, own: Mapping[str, Given]) -> dict[str, str | None]:
    """Every attention option of the release, with the release's default where nothing else decides."""
    table = asked.release.table.options
    names = [name for name in build_tables()["attention"] if name in table and name not in (_KV_TYPE, _PAGED_KV)]
    values: dict[str, str | None] = {name: str(table[name].default) for name in names}
    values.update(_data_types(asked))
    values["--context_fmha"] = asked.recipe.fmha
    values["--tokens_per_block"] = str(asked.recipe.kv_cache.tokens_per_block)
    values.update(_kv_type(asked))
    values["--use_paged_context_fmha"] = ON if _wants_paged(asked, own) else OFF
    if "--use_fp8_context_fmha" in table:
        values["--use_fp8_context_fmha"] = ON if _wants_fp8(asked, values, own) else OFF
    if asked.unfused:
        values.update({name: OFF for name in FUSED if name in table})
    return values


def _data_types(asked: Asked) -> dict[str, str]:
    """Plugins whose default is one fixed type get the checkpoint's own; ``auto`` does that by itself."""
    return {
        name: asked.checkpoint.dtype
        for name, option in asked.release.table.options.items()
        if option.plugin and option.default in _DTYPES and asked.checkpoint.dtype in (option.choices or ())
    }


def _kv_type(asked: Asked) -> dict[str, str]:
    """The kind of KV cache, by the option that is surely there."""
    kind, option = asked.recipe.kv_cache.type, asked.release.table.options.get(_KV_TYPE)
    if option is not None and (option.unsure is None or kind == "disabled"):
        return {_KV_TYPE: kind}
    return {_PAGED_KV: ON if kind == "paged" else OFF}


def _wants_paged(asked: Asked, own: Mapping[str, Given]) -> bool:
    """Asked for by reuse, else the release's default; never where the builder would refuse it or switch it off."""
    default = bool(asked.release.table.options["--use_paged_context_fmha"].default == ON)
    drafts = own.get("--speculative_decoding_mode")
    wanted = asked.recipe.kv_cache.reuse or default or drafts is not None
    return wanted and why_not_paged(asked, own) is None


def why_not_paged(asked: Asked, own: Mapping[str, Given]) -> str | None:
    """Why there can be no paged context attention; None when there can."""
    checkpoint = asked.checkpoint
    if asked.unfused:
        return "'fmha: disable' switches it off"
    if asked.recipe.kv_cache.type != "paged":
        return f"the KV cache is {asked.recipe.kv_cache.type}"
    if checkpoint.int8_kv:
        return "the checkpoint's KV cache is INT8"
    early = not asked.has("--use_fp8_context_fmha") or _applies("kvquant-0.9", asked)
    if checkpoint.fp8_kv and (early or not _fp8_weights(checkpoint)):
        return "the checkpoint's KV cache is FP8, and that needs FP8 weights and a later release"
    if checkpoint.fp8_kv and not _gpu_can(asked, "fp8-context"):
        return f"an FP8 KV cache needs FP8 attention, which SM {asked.sm} does not have"
    if (streaming := own.get("--streamingllm")) and streaming.value == ON:
        return "'streamingllm' switches it off"
    return None if _gpu_can(asked, "paged-context") else f"SM {asked.sm} has no kernels for it"


def _wants_fp8(asked: Asked, values: Mapping[str, str | None], own: Mapping[str, Given]) -> bool:
    if asked.unfused or not _fp8_weights(asked.checkpoint) or not _gpu_can(asked, "fp8-context"):
        return False
    chosen = own.get("--use_paged_context_fmha")
    if ON in (chosen.value if chosen else None, values["--use_paged_context_fmha"]):
        return asked.checkpoint.fp8_kv
    return bool(asked.release.table.options["--use_fp8_context_fmha"].default == ON)


def _fp8_weights(checkpoint: Checkpoint) -> bool:
    return (checkpoint.quant_algo or "").upper() in _FP8_WEIGHTS


def _gpu_can(asked: Asked, rule: str) -> bool:
    """Whether no limit of that name speaks against the GPU; an unknown GPU can."""
    rows = [row for row in load().attention if row.id.startswith(rule) and within(asked.release.version, row.versions)]
    return asked.sm is None or all(
        (low is None or asked.sm >= low) and (high is None or asked.sm <= high) for low, high in (r.sm for r in rows)
    )


def _applies(rule: str, asked: Asked) -> bool:
    rows = (row for row in build_tables()["constraints"] if row["id"] == rule)
    return any(within(asked.release.version, row["versions"]) is True for row in rows)


def _recipe_faults(asked: Asked) -> Iterator[ToolkitError]:
    recipe, where = asked.recipe, asked.loaded.where
    if recipe.kv_cache.reuse and (why := why_not_paged(asked, {})):
        hint = "Set 'reuse: false'" + (", or 'fmha: enable'." if asked.unfused else ".")
        what = f"the KV cache cannot be reused without paged context attention: {why}"
        yield ToolkitError(what, where("kv_cache.reuse"), hint, code="fmha")
    if asked.unfused and recipe.limits.max_num_tokens < recipe.limits.max_input_len:
        yield ToolkitError(
            f"max_num_tokens {recipe.limits.max_num_tokens} is under max_input_len {recipe.limits.max_input_len}, "
            "and without fused attention a prompt cannot be cut into chunks",
            where("limits.max_num_tokens"),
            f"Set 'max_num_tokens' to {recipe.limits.max_input_len} or more, or bound 'max_input_len'.",
            code="fmha",
        )
    yield from _block_faults(asked)
    kind = asked.release.table.options.get(_KV_TYPE)
    if kind is None and recipe.kv_cache.type == "disabled":
        what = f"trtllm-build {asked.release.version} cannot be told 'disabled'"
        yield ToolkitError(what, where("kv_cache.type"), "Use 'continuous' or 'paged'.")


def _block_faults(asked: Asked) -> Iterator[ToolkitError]:
    """Blocks of a size with which the engine would be built, and then answer nothing."""
    cache = asked.recipe.kv_cache
    below = 1 << (cache.tokens_per_block.bit_length() - 1)
    if cache.type == "paged" and cache.tokens_per_block != below and _applies("block-power-of-two", asked):
        yield ToolkitError(
            f"tokens_per_block {cache.tokens_per_block} is no power of two: such an engine fails at its first request",
            asked.loaded.where("kv_cache.tokens_per_block"),
            f"Write {below} or {2 * below}.",
            code="tokens_per_block",
            nearest=[below, 2 * below],
        )


def _rule_faults(asked: Asked, values: Mapping[str, str | None], own: Mapping[str, Given]) -> Iterator[ToolkitError]:
    """What the builder would refuse, or change with a warning only, said before it runs."""
    yield from _other_faults(asked, values, own)
    if asked.unfused:
        yield from _unfused_faults(own)
        return
    paged = values.get("--use_paged_context_fmha") == ON
    if paged and (why := why_not_paged(asked, own)):
        yield _conflict(own, "--use_paged_context_fmha", why)
    if not paged and values.get("--speculative_decoding_mode") in ("draft_tokens_external", "eagle"):
        yield _conflict(own, "--speculative_decoding_mode", "it needs 'use_paged_context_fmha: enable'")
    wanted = own.get("--use_fp8_context_fmha")
    if wanted is not None and (wanted.value == ON) != _wants_fp8(asked, values, {**own, **_only_paged(values)}):
        yield _conflict(own, "--use_fp8_context_fmha", "the builder would switch it, by the checkpoint's quantization")
    if values.get("--gpt_attention_plugin") == OFF:
        yield _conflict(own, "--gpt_attention_plugin", "fused attention is in this plugin")


def _only_paged(values: Mapping[str, str | None]) -> dict[str, Given]:
    return {"--use_paged_context_fmha": Given("", (values["--use_paged_context_fmha"] or OFF,), None)}


def _other_faults(asked: Asked, values: Mapping[str, str | None], own: Mapping[str, Given]) -> Iterator[ToolkitError]:
    if values.get("--gpt_attention_plugin") == OFF and asked.recipe.kv_cache.type == "paged":
        yield _conflict(own, "--gpt_attention_plugin", "the paged KV cache is in this plugin")
    if values.get("--multiple_profiles") == ON and "--opt_num_tokens" in values:
        yield _conflict(own, "--opt_num_tokens", "'multiple_profiles: enable' excludes it")
    if "--gather_context_logits" in values and values.get("--max_draft_len", "0") != "0":
        yield _conflict(own, "--gather_context_logits", "draft tokens exclude it")
    if values.get("--reduce_fusion") == ON and asked.checkpoint.tp_size == 1:
        yield _conflict(own, "--reduce_fusion", "with tp_size 1 the builder switches it off")
    if values.get("--user_buffer") == ON and values.get("--reduce_fusion") != ON:
        yield _conflict(own, "--user_buffer", "without 'reduce_fusion: enable' the builder switches it off")
    if values.get("--auto_parallel", "1") != "1" and asked.checkpoint.world_size > 1:
        yield _conflict(
            own, "--auto_parallel", f"the checkpoint is already divided among {asked.checkpoint.world_size}"
        )
    fused_mlp = asked.release.table.options.get("--use_fused_mlp")
    off = fused_mlp is not None and values.get("--use_fused_mlp", str(fused_mlp.default)) in (OFF, "False")
    for name in ("--gemm_swiglu_plugin", "--low_latency_gemm_swiglu_plugin"):
        if off and values.get(name, OFF) != OFF:
            yield _conflict(own, name, "it needs 'use_fused_mlp'")


def _unfused_faults(own: Mapping[str, Given]) -> Iterator[ToolkitError]:
    for name in FUSED:
        if name in own and own[name].value != OFF:
            yield _conflict(own, name, "'fmha: disable' switches it off")
    for name in DRAFTS:
        if name in own and own[name].value != "0":
            yield _conflict(own, name, "draft tokens need fused attention, which 'fmha: disable' switches off")


def _conflict(own: Mapping[str, Given], name: str, why: str) -> ToolkitError:
    each = own.get(name)
    return ToolkitError(
        f"'{name.removeprefix('--')}: {each.value if each else ''}' cannot be: {why}",
        each.where if each else None,
        "Remove the option, or what it conflicts with.",
        code="options",
    )


def _notes(asked: Asked, values: Mapping[str, str | None]) -> Iterator[str]:
    yield from asked.release.notes
    doubts = ((name, asked.release.table.options[name].unsure) for name in values)
    yield from (f"{name} in {asked.release.version}: {doubt}" for name, doubt in doubts if doubt)
    if "--max_output_len" in values:
        yield "this release bounds the answer, not the sequence: max_output_len is max_seq_len - max_input_len"
    if asked.recipe.dtype not in ("auto", asked.checkpoint.dtype):
        yield f"dtype {asked.recipe.dtype} is asked for, but the checkpoint is {asked.checkpoint.dtype}, which decides"
    if not asked.unfused and asked.checkpoint.dtype == "float32":
        yield "there are no fused kernels for float32: this engine falls back to unfused attention"
