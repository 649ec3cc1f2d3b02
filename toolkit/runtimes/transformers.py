"""``transformers``: ``transformers serve``, on a GPU or on CPUs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from toolkit.config.models import Canary, Service
from toolkit.environments.model import Environment
from toolkit.errors import ToolkitError
from toolkit.facts.model import capability
from toolkit.facts.options import Option
from toolkit.runtimes import argument_source, devices, generative, installed, program_options
from toolkit.runtimes.argument_source import Source
from toolkit.runtimes.base import PRELOAD_WINDOW_S, Assignment, Context, HttpProbe, Launch, Program, Traits

NAME = "transformers"
FILES = ("cli/serve.py", "commands/serving.py")
CHAT = "/v1/chat/completions"
# Its own extra 'serving', and accelerate, without which it places no model on a device.
NEEDED = ("accelerate", "fastapi", "openai", "pydantic", "torch", "uvicorn")
OWNED = {
    **program_options.service_keys(model="--force-model", host="--host", port="--port"),
    "--device": "Write 'gpus: 1' for a GPU; without, it runs on CPUs.",
    "--model-timeout": "The model stays loaded.",
    "--non-blocking": "The server is a process of its own.",
}
ATTENTION = {
    "fa2": "flash_attention_2",
    "fa3": "flash_attention_3",
    "fa4": "flash_attention_4",
    "sdpa": "sdpa",
    "vanilla": "eager",
}
FLASH_CAPABILITY = 80  # flash-attn 2 has no kernels for GPUs before Ampere
HALF = ("float16", "bfloat16")
# Nothing is compiled for a length, so that long prompts would warm no more than these.
LONGEST_WARMUP_WORDS = 256
# Tokens of a request and its answer, for the need of memory alone.
ASSUMED_LENGTH = 4096


class TransformersRuntime:
    """``transformers serve MODEL``."""

    name = NAME
    looks_inside = True
    traits = Traits(
        can_drain=False,
        answers_before_ready=True,
        memory_knob="none; with continuous batching the options cb-num-blocks and cb-max-memory-percent",
        readiness="/health says that the server listens, whether or not a model is loaded",
        warmup="none of its own; then prompts of growing length",
        affinity="keeps the mask it was given; as many threads as physical cores",
        traps=(
            "without a model to preload, /health is 200 before anything is loaded",
            "one request at a time unless 'continuous-batching' is on",
            "a flash-attn that is installed is imported, and a broken one breaks it",
            "a field that it does not know in a request is refused with 422",
            "it needs transformers[serving] and accelerate; what is missing is told before it starts",
        ),
    )

    def check(self, name: str, service: Service) -> None:
        """Raises ToolkitError when the service asks for what this program does not offer."""
        devices.check_one(name, service, "'transformers serve'", "Remove it, or use runtime vllm or sglang.")
        generative.check(name, service)
        devices.check_attention(name, service)

    def program(self, environment: Environment | None, python: Path, declared: Mapping[str, str]) -> Program | None:
        """transformers in an environment; ``executable`` is its command line beside the interpreter."""
        found = installed.program(NAME, environment, python, declared, files=FILES, read=options_of)
        script = next((s.path for s in environment.scripts if s.name == NAME), None) if environment else None
        features = _features(environment) if environment else {}
        return replace(found, executable=script or python.parent / NAME, features=features)

    def launch(self, context: Context, assignment: Assignment) -> Launch:
        """The process for this service on these resources.

        Raises: ToolkitError when its release cannot do what is asked, or lacks what it needs to serve.
        """
        program, service = installed.of(context), context.service
        _check_packages(context, program)
        model = str(context.model_dir)
        return Launch(
            argv=(
                *(str(program.executable), "serve", *_model(context, program, model)),
                *("--host", service.host, "--port", str(assignment.port)),
                *("--device", "cuda:0" if assignment.device_uuids else "cpu"),
                *_attention(context, assignment, program),
                *program_options.words(context.name, service.options, program.options, OWNED),
            ),
            env=generative.build_env(context, assignment, {"HF_HUB_DISABLE_UPDATE_CHECK": "1"}, uuids=True),
            probes=generative.probes(
                context,
                model=model,
                max_input_tokens=generative.positions(context.model_dir),
                live=HttpProbe("/health"),
                several=False,
                metrics=False,
                path=_path(context, program),
                longest=LONGEST_WARMUP_WORDS,
            ),
            preload_window_s=service.preload_window or PRELOAD_WINDOW_S,
            notes=(*program.notes, *generative.notes(service, assignment, knob=None), *_notes(service, assignment)),
        )


def sizes(service: Service, positions: int | None) -> generative.Sizes:
    """What the service's options say of its sizes; it knows no longest request: ``ASSUMED_LENGTH`` stands in."""
    options = service.options
    length = min(positions or ASSUMED_LENGTH, ASSUMED_LENGTH)
    batch = program_options.count_of(options, "cb-max-batch-tokens")
    return generative.Sizes(
        max_seq_len=length,
        max_num_tokens=batch or length,
        max_batch_size=generative.DEFAULT_BATCH if program_options.value_of(options, "continuous-batching") else 1,
        dtype=generative.dtype_of(options),
    )


def options_of(found: Source) -> Iterator[Option]:
    """Every option of its files: parameters of the command, or in older releases fields of a class."""
    yield from argument_source.of_fields(found, ("ServeArguments",), "flag")
    yield from argument_source.of_parameters(found, "Serve")


def _features(environment: Environment) -> dict[str, bool]:
    """Whether the model is the command's argument, whether plain completions are served, whether it knows fa4."""
    folder = environment.package_folder(NAME)
    with suppress(OSError):
        if folder is not None:
            serving = folder / "cli/serving"
            manager = serving / "model_manager.py"
            return {
                "model_argument": b"typer.Argument" in (folder / "cli/serve.py").read_bytes(),
                "completions": (serving / "completion.py").is_file(),
                "flash_attention_4": manager.is_file() and b'"flash_attention_4"' in manager.read_bytes(),
            }
    return {}


def _check_packages(context: Context, program: Program) -> None:
    missing = [name for name in NEEDED if name not in program.packages] if program.origin == "installed" else []
    if missing:
        raise ToolkitError(
            f"'transformers serve' needs {', '.join(missing)}, missing in the environment of {context.python}",
            f"services.{context.name}.environment",
            "Install transformers[serving] and accelerate there.",
            code="no_program",
        )


def _model(context: Context, program: Program, model: str) -> tuple[str, ...]:
    if installed.has(program, "--force-model"):
        return ("--force-model", model)
    if program.features.get("model_argument") is False:
        raise ToolkitError(
            f"transformers {program.version} cannot be told which model to load before it listens",
            f"services.{context.name}.environment",
            "Use a later transformers.",
            code="unsupported",
        )
    return (model,)


def _path(context: Context, program: Program) -> str:
    """Plain completions, of which answers are recorded; else a chat, when the service says what is right."""
    if program.features.get("completions") is not False:
        return generative.COMPLETIONS
    canary = context.service.canary
    if isinstance(canary, Canary) and canary.expected is not None:
        return CHAT
    raise ToolkitError(
        f"transformers {program.version} serves chats only, of which no right answer is recorded",
        f"services.{context.name}.canary",
        "Write 'canary: {prompt: …, expected: …}', or use a later transformers.",
        code="no_canary",
    )


def _attention(context: Context, assignment: Assignment, program: Program) -> tuple[str, ...]:
    """The service's choice, else FlashAttention 2 where GPU, package and model allow it, else SDPA."""
    asked = context.service.attention
    generative.check_one_attention(context, "attn-implementation")
    if program_options.value_of(context.service.options, "attn-implementation") is not None:
        return ()
    if asked == "auto":
        asked = "fa2" if _flash_fits(context, assignment, program) else "sdpa"
    if asked == "fa4" and program.features.get("flash_attention_4") is False:
        raise ToolkitError(
            f"'transformers serve' {program.version} has no attention 'fa4'",
            f"services.{context.name}.attention",
            "Write auto, fa2, fa3, sdpa or vanilla.",
            code="unsupported",
        )
    return ("--attn-implementation", ATTENTION[asked])


def _flash_fits(context: Context, assignment: Assignment, program: Program) -> bool:
    capabilities = [capability(each) for each in assignment.compute_capabilities]
    new = bool(capabilities) and all(each is not None and each >= FLASH_CAPABILITY for each in capabilities)
    config = generative.config_of(context.model_dir)
    asked = program_options.value_of(context.service.options, "dtype", "torch-dtype")
    dtype = asked if asked not in (None, "auto") else config.get("torch_dtype") or config.get("dtype")
    return new and "flash-attn" in program.packages and dtype in HALF


def _notes(service: Service, assignment: Assignment) -> Iterator[str]:
    if not program_options.value_of(service.options, "continuous-batching"):
        yield "it answers one request after the other; option 'continuous-batching: true' lets them run together"
    if assignment.device_uuids:
        yield f"its need of memory is that of requests of {ASSUMED_LENGTH} tokens: it has no limit of its own"
    if service.gpu_memory is not None and not assignment.device_uuids:
        yield "gpu_memory has no effect without a GPU"
