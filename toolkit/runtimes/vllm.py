"""``vllm``: the OpenAI server of vLLM."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from toolkit import facts
from toolkit.config.models import Service
from toolkit.environments.model import Environment
from toolkit.errors import ToolkitError
from toolkit.facts.options import Option
from toolkit.runtimes import argument_source, generative, installed, knobs, program_options
from toolkit.runtimes.argument_source import Source
from toolkit.runtimes.base import PRELOAD_WINDOW_S, Assignment, Context, HttpProbe, Launch, Program, Traits
from toolkit.units import format_cpu_list

NAME = "vllm"
FILES = (
    *("engine/arg_utils.py", "config.py", "config/*.py"),
    *("entrypoints/openai/cli_args.py", "entrypoints/common/cli_args.py", "entrypoints/launchers/cli_args.py"),
)
# What is in vllm/platforms/cuda.py of releases that find a device by its UUID.
UUID_LOOKUP = b"nvmlDeviceGetHandleByUUID"
FRACTION, KV_BYTES = "--gpu-memory-utilization", "--kv-cache-memory-bytes"
OWNED = {
    **program_options.service_keys(model="--model", host="--host", port="--port"),
    **program_options.service_keys(tp_size="--tensor-parallel-size", pp_size="--pipeline-parallel-size"),
    "--uds": "Write 'host' and 'port'.",
    FRACTION: "Write 'gpu_memory': the plan turns it into vLLM's fraction.",
    KV_BYTES: "Write 'gpu_memory': the plan turns it into vLLM's number.",
    "--device-ids": "Write them as 'gpus'.",
    "--config": program_options.NO_FILE,
    **dict.fromkeys(("--numa-bind", "--numa-bind-nodes", "--numa-bind-cpus"), program_options.BOUND),
    **dict.fromkeys(("--data-parallel-size", "--nnodes", "--node-rank"), program_options.ONE_NODE),
    **dict.fromkeys(("--headless", "--grpc"), program_options.ONE_NODE),
    **dict.fromkeys(("--api-key", "--ssl-keyfile", "--ssl-certfile"), program_options.PLAIN_HTTP),
}
BLOCK_TOKENS = 16  # of its KV cache on NVIDIA GPUs, unless 'block-size' says otherwise
SIZE_OPTIONS = generative.SizeOptions("max-model-len", "max-num-batched-tokens", "max-num-seqs", "block-size")
FLASH_ATTENTION = {"fa2": 2, "fa3": 3, "fa4": 4}


class VllmRuntime:
    """``vllm serve MODEL``, or the module that came before that command."""

    name = NAME
    looks_inside = True
    traits = Traits(
        can_drain=False,
        answers_before_ready=True,
        memory_knob=f"{FRACTION}: weights, activations and KV cache, of the device's total; {KV_BYTES} beside it where "
        "the release has that",
        readiness="/health runs no inference: it says that the engine's process lives",
        warmup="captures its CUDA graphs before it listens; then prompts of growing length and a batch",
        affinity="keeps the mask it was given; binding of its own is off unless asked for",
        traps=(
            "releases with --attention-backend ignore VLLM_ATTENTION_BACKEND without a word",
            "releases up to 0.20.1 die of a UUID in CUDA_VISIBLE_DEVICES, so they get ordinals",
            "CUDA graphs may come on top of its fraction: 1 to 3 GiB",
            "when only its parent is killed, engine processes live on and keep their memory",
            "starts that share a cache folder poison each other's torch.compile cache",
        ),
    )

    def check(self, name: str, service: Service) -> None:
        """Raises ToolkitError when the service asks for what this program does not offer."""
        generative.check(name, service)
        generative.check_attention(name, service, "vLLM", FLASH_ATTENTION)

    def program(self, environment: Environment | None, python: Path, declared: Mapping[str, str]) -> Program | None:
        """vLLM in an environment, its options from its own files; ``executable`` is ``vllm``, else the interpreter."""
        found = installed.program(NAME, environment, python, declared, files=FILES, read=options_of)
        if environment is None:
            module_only = facts.server_does(NAME, "serve_command", found.version) is False
            return found if module_only else replace(found, executable=python.parent / NAME)
        script = next((each.path for each in environment.scripts if each.name == NAME), None)
        beside = script or python.parent / NAME
        executable = beside if os.access(beside, os.X_OK) else python
        return replace(found, executable=executable, features=_features(environment))

    def launch(self, context: Context, assignment: Assignment) -> Launch:
        """The process for this service on these resources.

        Raises: ToolkitError when its release cannot do what is asked.
        """
        program, service = installed.of(context), context.service
        _check_devices(context, assignment, program)
        model = generative.served_name(context)
        length = program_options.count_of(service.options, "max-model-len") or generative.positions(context.model_dir)
        attention, attention_env = attention_of(context, program)
        own_words = program_options.words(context.name, service.options, program.options, OWNED)
        return Launch(
            argv=(
                *_command(context, program),
                *(() if "--served-model-name" in own_words else ("--served-model-name", model)),
                *("--host", service.host, "--port", str(assignment.port)),
                *_parallel(service, program),
                *_memory(assignment, program),
                *attention,
                *own_words,
            ),
            env=_env(context, assignment, program, attention_env),
            probes=generative.probes(
                context,
                model=model,
                max_input_tokens=length,
                live=HttpProbe("/health"),
                adapters=_adapters(service),
            ),
            preload_window_s=service.preload_window or PRELOAD_WINDOW_S,
            notes=(*program.notes, *generative.notes(service, assignment, knob=FRACTION), *_notes(assignment, program)),
        )


def _adapters(service: Service) -> tuple[HttpProbe, ...]:
    """An adapter is asked for as if it were a model."""
    names = generative.adapter_names(program_options.value_of(service.options, "lora-modules"))
    return generative.adapter_requests(names, lambda name: {"model": name})


def sizes(service: Service, positions: int | None) -> generative.Sizes:
    """What the service's options say of its sizes; ``positions``: what the model was made for."""
    eager = program_options.value_of(service.options, "enforce-eager") is True or service.gpus.size == 0
    found = generative.sizes(service.options, SIZE_OPTIONS, positions, graphs=not eager)
    return replace(found, tokens_per_block=found.tokens_per_block or BLOCK_TOKENS)


def options_of(found: Source) -> Iterator[Option]:
    """Every option that vLLM's files define: the server's, as fields or as calls, and the engine's."""
    yield from argument_source.of_fields(found, ("FrontendArgs",))
    yield from argument_source.of_calls(found)


def is_cpu_build(program: Program) -> bool:
    """Whether the release is one for CPUs, by its own version or torch's."""
    versions = (program.version or "", program.packages.get("torch", ""))
    return versions[0].endswith("+cpu") or (program.version is not None and versions[1].endswith("+cpu"))


def takes_uuids(program: Program) -> bool:
    """Whether CUDA_VISIBLE_DEVICES may hold UUIDs: as its files say, else as facts do; ordinals always may."""
    told = program.features.get("uuid_devices")
    return told if told is not None else facts.server_does(NAME, "uuid_devices", program.version) is True


def attention_of(context: Context, program: Program) -> tuple[tuple[str, ...], dict[str, str]]:
    """Words and variables for the attention that the service asks for; auto leaves it to vLLM, which knows the GPU.

    Raises: ToolkitError when an option of the service says something else.
    """
    asked = FLASH_ATTENTION.get(context.service.attention)
    if asked is None:
        return (), {}
    generative.check_one_attention(context, "attention-backend", "attention-config")
    if installed.has(program, "--attention-config"):
        return ("--attention-config", json.dumps({"backend": "FLASH_ATTN", "flash_attn_version": asked})), {}
    option = installed.has(program, "--attention-backend")
    if option is None:
        option = facts.server_does(NAME, "attention_option", program.version) is not False
    if option:
        return ("--attention-backend", "FLASH_ATTN"), {"VLLM_FLASH_ATTN_VERSION": str(asked)}
    return (), {"VLLM_ATTENTION_BACKEND": "FLASH_ATTN", "VLLM_FLASH_ATTN_VERSION": str(asked)}


def _features(environment: Environment) -> dict[str, bool]:
    folder = environment.package_folder(NAME)
    with suppress(OSError):
        if folder is not None:
            return {"uuid_devices": UUID_LOOKUP in (folder / "platforms/cuda.py").read_bytes()}
    return {}


def _check_devices(context: Context, assignment: Assignment, program: Program) -> None:
    named = context.deployment.environments.get(context.service.environment or "")
    in_image = named is not None and named.image is not None
    if generative.on_slices(assignment) and not takes_uuids(program) and not in_image:
        raise ToolkitError(
            f"vLLM {program.version or 'of an unknown release'} cannot be pointed at a MIG slice",
            f"services.{context.name}.gpus",
            "Use a later vLLM, or a container image, which sees its slice alone.",
            code="mig_unsupported",
        )


def _command(context: Context, program: Program) -> tuple[str, ...]:
    model = str(context.model_dir)
    if program.executable.name == NAME:
        return (str(program.executable), "serve", model)
    return (str(program.executable), "-m", "vllm.entrypoints.openai.api_server", "--model", model)


def _parallel(service: Service, program: Program) -> Iterator[str]:
    if service.tp_size > 1:
        yield from ("--tensor-parallel-size", str(service.tp_size))
    if service.pp_size > 1:
        yield from ("--pipeline-parallel-size", str(service.pp_size))
    if service.world_size > 1 and installed.has(program, "--distributed-executor-backend") is not False:
        # Another executor would look for a cluster of its own.
        yield from ("--distributed-executor-backend", "mp")


def _memory(assignment: Assignment, program: Program) -> Iterator[str]:
    fraction = generative.least(map(knobs.vllm_gpu_memory_utilization, assignment.memory))
    if fraction is not None:
        yield from (FRACTION, f"{fraction:g}")
    kv_bytes = generative.least(map(knobs.vllm_kv_cache_bytes, assignment.memory))
    has = installed.has(program, KV_BYTES)
    if has is None:
        has = facts.server_does(NAME, "kv_cache_bytes", program.version) is True
    if kv_bytes is not None and has:
        yield from (KV_BYTES, str(int(kv_bytes)))


def _env(context: Context, assignment: Assignment, program: Program, attention: Mapping[str, str]) -> dict[str, str]:
    cache = context.cache_dir
    own = {
        "VLLM_CACHE_ROOT": str(cache / "vllm"),
        "VLLM_CONFIG_ROOT": str(cache / "vllm-config"),
        "VLLM_NO_USAGE_STATS": "1",
        "DG_JIT_CACHE_DIR": str(cache / "deep-gemm"),
        **attention,
    }
    if not assignment.device_uuids:
        own["VLLM_CPU_OMP_THREADS_BIND"] = format_cpu_list(assignment.cpus)
    return generative.build_env(context, assignment, own, uuids=takes_uuids(program))


def _notes(assignment: Assignment, program: Program) -> Iterator[str]:
    if not is_cpu_build(program):
        yield from generative.without_gpu(assignment, "vLLM")
    if assignment.device_uuids and not takes_uuids(program):
        yield "its GPUs are named by index: this release may not read UUIDs"
    if generative.least(map(knobs.vllm_kv_cache_bytes, assignment.memory)) is None and assignment.device_uuids:
        yield "its KV cache is what vLLM leaves of its fraction; CUDA graphs may come on top of that"
