"""What programs that serve a language model in OpenAI's shapes have in common: probes, warm-up, notes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolkit.config.models import Service
from toolkit.errors import ToolkitError
from toolkit.files import json_object
from toolkit.runtimes import devices, environment, program_options
from toolkit.runtimes.base import Assignment, Context, Generation, HttpProbe, Probes
from toolkit.runtimes.generation_canary import canary_of
from toolkit.runtimes.service_notes import notes_of
from toolkit.units import GIB

COMPLETIONS = "/v1/completions"
# A program that compiles or tunes for a new length may take minutes for the first request of it.
WARMUP_TIMEOUT_S = 600.0
WARMUP_WORDS = (8, 64, 256, 1024, 4096)
WARMUP_TOKENS = 4
# Requests that are decoded together, where one body may hold several.
WARMUP_BATCH = 8
# Words such as those below are at most so many tokens each.
TOKENS_PER_WORD = 2
# Upper end of what capturing CUDA graphs was seen to take beside the KV cache. Source: vllm#2521, sglang#6830.
GRAPH_POOL_BYTES = 3 * GIB
# Of a step, where the options say nothing: what vLLM and SGLang take on large GPUs. Source: their 0.33.0 and 0.5.23.
DEFAULT_NUM_TOKENS = 8192
# Requests that run together, where the options say nothing: vLLM's default; SGLang takes as many as fit.
DEFAULT_BATCH = 256
# How configurations of models call the number of their experts.
EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_DTYPES = {"half": "float16", "float": "float32"}
_WORDS = ("rain", "falls", "on", "the", "old", "stone", "house", "by", "a", "river")


def check(name: str, service: Service) -> None:
    """Raises ToolkitError when the service asks for what no such program offers."""
    environment.check(name, service.env)
    if service.model is None:
        what = f"runtime '{service.runtime}' needs 'model'"
        raise ToolkitError(what, f"services.{name}", "Write 'model: FOLDER'.", code="no_model")
    if service.fmha == "disable":
        raise ToolkitError(
            f"{service.runtime} has no switch that turns fused attention off",
            f"services.{name}.fmha",
            "Remove it: a process with an environment and a GPU of its own keeps its kernels away from the others'.",
            code="fmha_unsupported",
        )
    devices.check(name, service)


def check_attention(name: str, service: Service, program: str, known: Iterable[str]) -> None:
    """Raises ToolkitError when the service asks for an attention that the program does not have."""
    choices = ["auto", *known]
    if service.attention not in choices:
        raise ToolkitError(
            f"{program} has no attention '{service.attention}'",
            f"services.{name}.attention",
            f"Write {', '.join(choices[:-1])} or {choices[-1]}, or name one of {program}'s own as option "
            "'attention-backend'.",
            code="unsupported",
        )


def check_one_attention(context: Context, *options: str) -> None:
    """Raises ToolkitError when the service asks for an attention, and one of these options for another."""
    value_of, service = program_options.value_of, context.service
    option = next((each for each in options if value_of(service.options, each) is not None), None)
    if service.attention != "auto" and option is not None:
        what = f"'attention' and the option '{option}' name an attention each"
        raise ToolkitError(what, f"services.{context.name}.attention", "Keep one of them.", code="option_owned")


def served_name(context: Context) -> str:
    """The name under which the model is served: as its option says, else its folder's."""
    told = program_options.value_of(context.service.options, "served-model-name")
    return str(told or (context.name if context.model_dir is None else context.model_dir.name))


def probes(
    context: Context,
    *,
    model: str,
    max_input_tokens: int | None,
    live: HttpProbe,
    deep: HttpProbe | None = None,
    several: bool = True,
    metrics: bool = True,
    path: str = COMPLETIONS,
    longest: int = WARMUP_WORDS[-1],
    adapters: tuple[HttpProbe, ...] = (),
) -> Probes:
    """The probes of such a program; ``several``: one body may hold several prompts; ``longest``: words of a warm-up.

    ``adapters``: a request for each LoRA adapter (``adapter_requests``). PRELOAD is over when ``live`` answers; what an
    answer is worth is shown in PRIME.
    """
    canary, canary_set = canary_of(context, plain=path == COMPLETIONS)
    return Probes(
        loaded=live,
        live=live,
        deep=deep,
        warmup=(*warmup(model, max_input_tokens, several=several, path=path, longest=longest), *adapters),
        canary=canary,
        canary_set=canary_set,
        generation=Generation("completions", path, model, max_input_tokens),
        metrics=HttpProbe("/metrics") if metrics else None,
        unseen=("experts",) if has_experts(context.model_dir) else (),
    )


def has_experts(model_dir: Path | None) -> bool:
    """Whether the model routes tokens to experts: which of them a prompt reaches, no answer says."""
    config = config_of(model_dir)
    inner = config.get("text_config")
    found = {**config, **(inner if isinstance(inner, Mapping) else {})}
    return any(isinstance(found.get(name), int) and found[name] > 1 for name in EXPERT_COUNTS)


def adapter_requests(names: Iterable[str], body: Callable[[str], Mapping[str, Any]]) -> tuple[HttpProbe, ...]:
    """One completion for each LoRA adapter; ``body``: how the program is asked for it, beside prompt and length."""
    asked = {"prompt": text(WARMUP_WORDS[0]), "max_tokens": WARMUP_TOKENS, "temperature": 0}
    return tuple(
        HttpProbe(COMPLETIONS, "POST", {**asked, **body(name)}, timeout_s=WARMUP_TIMEOUT_S, adapter=name)
        for name in names
    )


def adapter_names(value: Any) -> tuple[str, ...]:
    """The names in an option that lists LoRA adapters: ``NAME=PATH``, a mapping with ``name`` (or ``lora_name``)."""
    items = value if isinstance(value, list) else [] if value is None else [value]
    return tuple(dict.fromkeys(name for item in items if (name := _adapter_name(item))))


def _adapter_name(item: Any) -> str | None:
    if isinstance(item, str) and item.startswith("{"):
        with suppress(ValueError):
            item = json.loads(item)
    if isinstance(item, Mapping):
        found = item.get("name") or item.get("lora_name")
        return found if isinstance(found, str) else None
    return item.partition("=")[0] if isinstance(item, str) else None


def warmup(
    model: str,
    max_input_tokens: int | None,
    *,
    several: bool,
    path: str = COMPLETIONS,
    longest: int = WARMUP_WORDS[-1],
) -> tuple[HttpProbe, ...]:
    """Requests of growing length, as far as the limit lets them, then several at once."""
    fitting = [words for words in WARMUP_WORDS if words <= longest and _fits(words, max_input_tokens)] or [1]
    asked = [_request(model, path, text(words)) for words in fitting]
    if several:
        asked.append(_request(model, path, [text(fitting[0], shift) for shift in range(WARMUP_BATCH)]))
    return tuple(asked)


def text(words: int, shift: int = 0) -> str:
    """So many plain words; another shift begins with another word."""
    return " ".join(_WORDS[(at + shift) % len(_WORDS)] for at in range(words))


def _fits(words: int, max_input_tokens: int | None) -> bool:
    limit = max_input_tokens if max_input_tokens is not None else TOKENS_PER_WORD * WARMUP_WORDS[1] + WARMUP_TOKENS
    return TOKENS_PER_WORD * words + WARMUP_TOKENS <= limit


def _request(model: str, path: str, prompt: str | list[str]) -> HttpProbe:
    asked = {"prompt": prompt} if path == COMPLETIONS else {"messages": [{"role": "user", "content": prompt}]}
    body = {"model": model, **asked, "max_tokens": WARMUP_TOKENS, "temperature": 0}
    return HttpProbe(path, "POST", body, timeout_s=WARMUP_TIMEOUT_S)


def positions(model_dir: Path | None) -> int | None:
    """How many tokens the model was made for, from its ``config.json``; None: nothing tells."""
    config = config_of(model_dir)
    text_config = config.get("text_config")
    inner = text_config if isinstance(text_config, Mapping) else config
    found = inner.get("max_position_embeddings")
    return found if isinstance(found, int) else None


def config_of(model_dir: Path | None) -> Mapping[str, Any]:
    """The model's ``config.json``; empty where there is none to read."""
    return (json_object(model_dir / "config.json") if model_dir is not None else None) or {}


def without_gpu(assignment: Assignment, program: str) -> Iterator[str]:
    """What to say of a service without GPUs whose program has builds for CPUs, which not all of them are."""
    if not assignment.device_uuids:
        yield f"the plan gives it no GPU, and {program} needs one unless it is a build for CPUs"


def visible(assignment: Assignment, *, uuids: bool) -> str:
    """CUDA_VISIBLE_DEVICES: UUIDs, or nvidia-smi's indices (which CUDA_DEVICE_ORDER makes CUDA's too)."""
    return ",".join(assignment.device_uuids if uuids else map(str, assignment.device_indices))


def on_slices(assignment: Assignment) -> bool:
    """Whether any of its devices is a MIG slice."""
    return any(uuid.startswith("MIG-") for uuid in assignment.device_uuids)


def build_env(context: Context, assignment: Assignment, own: Mapping[str, str], *, uuids: bool) -> dict[str, str]:
    """The whole environment: what every server has, the program's ``own`` variables, the service's last.

    Threads are divided among ranks, each of which is a process with libraries of its own.
    """
    ranks = max(1, len(assignment.device_uuids))
    cores = assignment.physical_cores or len(assignment.cpus) or 1
    return {
        **environment.build(context, assignment),
        **dict.fromkeys(environment.THREAD_COUNTS, str(max(1, cores // ranks))),
        "CUDA_VISIBLE_DEVICES": visible(assignment, uuids=uuids),
        "DO_NOT_TRACK": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        **own,
        **context.service.env,
    }


def least(numbers: Iterable[float | None]) -> float | None:
    """The smallest of numbers that are all known: every device gets the same option. None: one is not known."""
    found = list(numbers)
    return None if not found or None in found else min(each for each in found if each is not None)


def notes(service: Service, assignment: Assignment, *, knob: str | None) -> tuple[str, ...]:
    """What a person should know of any of them; ``knob`` None: the budget is not told to the program."""
    made = ["it can't be drained: its last requests end when it stops", *notes_of(service)]
    if knob is None and assignment.device_uuids and any(each is not None for each in assignment.budget_bytes):
        made.append("nothing holds it to its memory budget: the program has no option for that")
    return tuple(made)


@dataclass(frozen=True)
class Sizes:
    """What a service's options say of its sizes, for the need of memory; tokens, requests, bytes. None: not told.

    ``dtype``: what it runs in, None: the model's own. ``kv_dtype_bytes``: of one number in the KV cache.
    """

    max_seq_len: int | None
    max_num_tokens: int
    max_batch_size: int | None = None
    tokens_per_block: int | None = None
    dtype: str | None = None
    kv_dtype_bytes: int | None = None
    graph_pool_bytes: int = 0


@dataclass(frozen=True)
class SizeOptions:
    """What a program calls its longest request, the tokens of a step, requests that run together, and a KV block."""

    seq_len: str
    num_tokens: str
    batch_size: str
    block: str


def sizes(options: Mapping[str, Any], names: SizeOptions, positions: int | None, *, graphs: bool) -> Sizes:
    """What a program's options say of its sizes; ``graphs``: it captures CUDA graphs."""
    count = program_options.count_of
    return Sizes(
        max_seq_len=count(options, names.seq_len) or positions,
        max_num_tokens=count(options, names.num_tokens) or DEFAULT_NUM_TOKENS,
        max_batch_size=count(options, names.batch_size) or DEFAULT_BATCH,
        tokens_per_block=count(options, names.block),
        dtype=dtype_of(options),
        kv_dtype_bytes=kv_dtype_bytes_of(options),
        graph_pool_bytes=GRAPH_POOL_BYTES if graphs else 0,
    )


def dtype_of(options: Mapping[str, Any]) -> str | None:
    """The element type that the options name, as PyTorch calls it; None: the model's own."""
    asked = program_options.value_of(options, "dtype", "torch-dtype")
    return None if asked in (None, "auto") else _DTYPES.get(str(asked), str(asked))


def kv_dtype_bytes_of(options: Mapping[str, Any]) -> int | None:
    """Bytes of one number in the KV cache where the options name an 8-bit type; None: as the model's."""
    return 1 if str(program_options.value_of(options, "kv-cache-dtype")).startswith("fp8") else None
