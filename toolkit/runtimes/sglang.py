"""``sglang``: the server of SGLang."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from toolkit.config.models import Service
from toolkit.environments.model import Environment
from toolkit.errors import ToolkitError
from toolkit.facts.options import Option
from toolkit.names import suggestion
from toolkit.runtimes import argument_source, generative, installed, knobs, program_options
from toolkit.runtimes.argument_source import Source
from toolkit.runtimes.base import PRELOAD_WINDOW_S, Assignment, Context, HttpProbe, Launch, Program, Traits

NAME = "sglang"
FILES = ("srt/server_args.py", "srt/arg_groups/*.py", "srt/arg_groups/fields/*.py")
FRACTION, MAX_TOKENS = "--mem-fraction-static", "--max-total-tokens"
_DEVICES = "Write them as 'gpus': the process sees its own only, counted from 0."
OWNED = {
    **program_options.service_keys(model="--model-path", host="--host", port="--port"),
    **program_options.service_keys(tp_size="--tp-size", pp_size="--pp-size"),
    FRACTION: "Write 'gpu_memory': the plan turns it into SGLang's fraction.",
    MAX_TOKENS: "Write 'gpu_memory': the plan turns it into SGLang's number of tokens.",
    "--numa-node": program_options.BOUND,
    "--config": program_options.NO_FILE,
    **dict.fromkeys(("--base-gpu-id", "--gpu-id-step"), _DEVICES),
    **dict.fromkeys(("--dp-size", "--nnodes", "--node-rank", "--dist-init-addr"), program_options.ONE_NODE),
    **dict.fromkeys(("--api-key", "--ssl-keyfile", "--ssl-certfile"), program_options.PLAIN_HTTP),
}
SIZE_OPTIONS = generative.SizeOptions("context-length", "chunked-prefill-size", "max-running-requests", "page-size")
ATTENTION = {"fa3": "fa3", "fa4": "fa4", "sdpa": "torch_native"}


class SglangRuntime:
    """``python -m sglang.launch_server``."""

    name = NAME
    looks_inside = True
    traits = Traits(
        can_drain=False,
        answers_before_ready=True,
        memory_knob=f"{FRACTION}: weights and KV cache, of what is free when it starts; {MAX_TOKENS} beside it",
        readiness="/health may answer long before it can generate; /health_generate runs one token",
        warmup="runs one request of its own; then prompts of growing length and a batch",
        affinity="binds itself to its GPU's NUMA node unless told not to: SGLANG_AUTO_NUMA_BIND=0",
        traps=(
            "/health was seen to be 200 for 264 s before the first answer",
            "its fraction is of what is free: start order changes what it takes",
            "DeepGEMM compiles at first use, and two processes with one cache folder fail on each other",
            "the first start with CUDA graphs may take minutes",
        ),
    )

    def check(self, name: str, service: Service) -> None:
        """Raises ToolkitError when the service asks for what this program does not offer."""
        generative.check(name, service)
        generative.check_attention(name, service, "SGLang", ATTENTION)

    def program(self, environment: Environment | None, python: Path, declared: Mapping[str, str]) -> Program | None:
        """SGLang in an environment, its options from its own files; ``executable`` is the interpreter."""
        return installed.program(NAME, environment, python, declared, files=FILES, read=options_of)

    def launch(self, context: Context, assignment: Assignment) -> Launch:
        """The process for this service on these resources.

        Raises: ToolkitError when its release cannot do what is asked.
        """
        program, service = installed.of(context), context.service
        model = generative.served_name(context)
        length = program_options.count_of(service.options, "context-length") or generative.positions(context.model_dir)
        own_words = program_options.words(context.name, service.options, program.options, OWNED)
        metrics = installed.has(program, "--enable-metrics") is True
        return Launch(
            argv=(
                *(str(program.executable), "-m", "sglang.launch_server", "--model-path", str(context.model_dir)),
                *(() if "--served-model-name" in own_words else ("--served-model-name", model)),
                *("--host", service.host, "--port", str(assignment.port)),
                *_parallel(context, program),
                *_memory(assignment),
                *_attention(context, program),
                *(("--enable-metrics",) if metrics and "--enable-metrics" not in own_words else ()),
                *own_words,
            ),
            env=_env(context, assignment),
            probes=generative.probes(
                context,
                model=model,
                max_input_tokens=length,
                live=HttpProbe("/health"),
                deep=HttpProbe("/health_generate", timeout_s=generative.WARMUP_TIMEOUT_S),
                metrics=metrics or "--enable-metrics" in own_words,
                adapters=_adapters(service, model),
            ),
            preload_window_s=service.preload_window or PRELOAD_WINDOW_S,
            notes=(*program.notes, *generative.notes(service, assignment, knob=FRACTION), *_notes(assignment)),
        )


def _adapters(service: Service, model: str) -> tuple[HttpProbe, ...]:
    """An adapter is named beside the model."""
    names = generative.adapter_names(program_options.value_of(service.options, "lora-paths"))
    return generative.adapter_requests(names, lambda name: {"model": model, "lora_path": name})


def sizes(service: Service, positions: int | None) -> generative.Sizes:
    """What the service's options say of its sizes; ``positions``: what the model was made for."""
    eager = program_options.value_of(service.options, "disable-cuda-graph") is True
    return generative.sizes(service.options, SIZE_OPTIONS, positions, graphs=not eager)


def options_of(found: Source) -> Iterator[Option]:
    """Every option that SGLang's files define: annotated fields, and calls."""
    yield from argument_source.of_annotated(found)
    yield from argument_source.of_calls(found)


def _parallel(context: Context, program: Program) -> Iterator[str]:
    service = context.service
    if service.tp_size > 1:
        yield from ("--tp-size", str(service.tp_size))
    if service.pp_size > 1:
        if installed.has(program, "--pp-size") is False:
            raise ToolkitError(
                f"SGLang {program.version} has no pipeline parallelism",
                f"services.{context.name}.pp_size",
                "Use 'tp_size', or a later SGLang.",
                code="unsupported",
            )
        yield from ("--pp-size", str(service.pp_size))


def _memory(assignment: Assignment) -> Iterator[str]:
    fraction = generative.least(map(knobs.sglang_mem_fraction_static, assignment.memory))
    if fraction is not None:
        yield from (FRACTION, f"{fraction:g}")
    tokens = generative.least(map(knobs.sglang_max_total_tokens, assignment.memory))
    if tokens is not None:
        yield from (MAX_TOKENS, str(int(tokens)))


def _attention(context: Context, program: Program) -> tuple[str, ...]:
    """Auto leaves it to SGLang, which knows the GPU."""
    asked = ATTENTION.get(context.service.attention)
    if asked is None:
        return ()
    generative.check_one_attention(context, "attention-backend")
    option = program.options.find("--attention-backend") if program.options else None
    if option is not None and option.choices and not option.open_choices and asked not in option.choices:
        what = f"SGLang {program.version} has no attention '{context.service.attention}' ({asked})"
        where = f"services.{context.name}.attention"
        raise ToolkitError(what, where, suggestion(asked, option.choices), code="unsupported")
    return ("--attention-backend", asked)


def _env(context: Context, assignment: Assignment) -> dict[str, str]:
    cache = context.cache_dir
    own = {
        "SGLANG_CACHE_DIR": str(cache / "sglang"),
        "SGLANG_DG_CACHE_DIR": str(cache / "deep-gemm"),
        "DG_JIT_CACHE_DIR": str(cache / "deep-gemm"),
        # The plan has bound the process already; SGLang would widen or move the mask.
        "SGLANG_SET_CPU_AFFINITY": "0",
        "SGLANG_AUTO_NUMA_BIND": "0",
    }
    return generative.build_env(context, assignment, own, uuids=True)


def _notes(assignment: Assignment) -> Iterator[str]:
    yield from generative.without_gpu(assignment, "SGLang")
    if assignment.device_uuids and generative.least(map(knobs.sglang_mem_fraction_static, assignment.memory)) is None:
        yield "its share of the memory is SGLang's own default: what it needs beside the KV cache is not known"
