"""``trtllm``: TensorRT-LLM's own server, for an engine it built or, in PyTorch mode, for a model."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from packaging.utils import canonicalize_name

from toolkit.config.models import HttpRequest, Service
from toolkit.environments.model import Environment
from toolkit.errors import ToolkitError
from toolkit.facts import serve_options
from toolkit.facts.options import OptionTable
from toolkit.runtimes import devices, trtllm_guards, trtllm_llm_args
from toolkit.runtimes import environment as variables
from toolkit.runtimes import trtllm_options as options
from toolkit.runtimes import trtllm_served as serving
from toolkit.runtimes.base import Assignment, Context, Launch, Program, Traits
from toolkit.runtimes.trtllm_job import Job
from toolkit.runtimes.trtllm_llm_args import KvCache
from toolkit.runtimes.trtllm_options import Allowed
from toolkit.runtimes.trtllm_release import Release, release

PACKAGE, PROGRAM = "tensorrt-llm", options.PROGRAM
# What a service's 'attention' may be in PyTorch mode.
ATTENTIONS = ("auto", "vanilla")
TRAPS = (
    "/health is 200 long before the first token",
    "a KV cache that reuses blocks on an engine without paged context attention answers wrongly",
    "limits are the engine's, whatever the flags say",
    "its memory fraction is of what is free when the KV cache is made: who starts beside it changes what it takes",
    "from 1.2 on its workers remove the CPU mask they were given unless TLLM_NUMA_AWARE_WORKER_AFFINITY is 0",
    "an attention backend that is unknown or not there becomes TRTLLM, up to 1.3.0rc3 without a word",
    "an engine is bound to its release, to TensorRT by all four numbers, and to one compute capability",
)


class TrtllmRuntime:
    """``trtllm-serve``, by release."""

    name = "trtllm"
    looks_inside = True
    traits = Traits(
        can_drain=False,
        answers_before_ready=True,
        memory_knob="--kv_cache_free_gpu_memory_fraction, and kv_cache_config.max_tokens in its options file (0.19+)",
        readiness="/health runs no inference; /health_generate (1.3.0rc3+) or one token of /v1/completions does",
        warmup="completions in growing lengths, then several prompts at once up to max_batch_size",
        affinity="keeps the mask where it is told to; 'options: {launcher: mpirun}' pins each rank",
        traps=TRAPS,
    )

    def __init__(self, as_root: bool | None = None) -> None:
        """``as_root``: mpirun must be told that it may run as that; None: as this process is."""
        self._as_root = os.geteuid() == 0 if as_root is None else as_root

    def check(self, name: str, service: Service) -> None:
        """Raises ToolkitError when the service asks for what this program does not offer in any release."""
        variables.check(name, service.env)
        if service.engine is None:
            _check_model(name, service)
        elif service.attention != "auto":
            raise ToolkitError(
                "an engine's attention is chosen when it is built",
                f"services.{name}.attention",
                "Remove it; 'fmha: disable' in the recipe builds without fused context attention.",
                code="unsupported",
            )
        devices.check(name, service)
        if isinstance(service.canary, HttpRequest):
            hint = 'Write for example canary: {prompt: "The capital of France is", expected: " Paris"}.'
            raise ToolkitError("its canary is a prompt", f"services.{name}.canary", hint, code="bad_canary")

    def program(self, environment: Environment | None, python: Path, declared: Mapping[str, str]) -> Program | None:
        """``trtllm-serve`` beside the interpreter; its version from the package's metadata, else as declared."""
        # An interpreter that is only a name is one of a container, whose PATH has the program.
        executable = python.parent / PROGRAM if python.parent != Path() else Path(PROGRAM)
        if environment is None:
            known = {str(canonicalize_name(key)): value for key, value in declared.items()}
            version = known.get(PACKAGE)
            origin: Literal["declared", "assumed"] = "declared" if version else "assumed"
            return Program(PACKAGE, version, executable, origin, _options(version), known)
        packages = {each.name: each.version or "" for each in environment.distributions}
        version = packages.get(PACKAGE)
        return Program(PACKAGE, version, executable, "installed", _options(version), packages)

    def launch(self, context: Context, assignment: Assignment) -> Launch:
        """The process for this service on these resources.

        Raises: ToolkitError when the installed release cannot do what is asked; ManyFaultsError for its options.
        """
        program, found = _program(context)
        served = serving.served(context, found)
        because = trtllm_guards.VANILLA if served.vanilla else trtllm_guards.ENGINE
        allowed = Allowed(found, served.able, because, tokenizer=served.is_engine and served.tokenizer is None)
        given = options.given(context.name, context.service, allowed)
        serving.check_tokenizer(context, served, given)
        serving.check_limits(context, served, given)
        serving.check_experts(context, given)
        memory = trtllm_llm_args.kv_cache(assignment, found)
        _check_budget(context, memory)
        job = Job(context, assignment, program, found, served, given, memory)
        return job.launch(self._as_root)


def _options(version: str | None) -> OptionTable | None:
    return serve_options(version) if version else None


def _check_model(name: str, service: Service) -> None:
    if service.model is None:
        hint = "Write 'engine: NAME' for an engine, or 'model: FOLDER' for the PyTorch mode."
        raise ToolkitError("nothing says what it serves", f"services.{name}", hint, code="no_model")
    if service.fmha == "disable":
        raise ToolkitError(
            "the PyTorch mode has no switch that turns fused attention off",
            f"services.{name}.fmha",
            "Isolate it instead: a process with an environment and a GPU of its own meets nobody's kernels. An engine "
            "can be built without ('fmha: disable' in a recipe); 'attention: vanilla' only avoids TensorRT-LLM's own.",
            code="fmha_unsupported",
        )
    if service.attention not in ATTENTIONS:
        raise ToolkitError(
            f"TensorRT-LLM's PyTorch mode has no attention '{service.attention}'",
            f"services.{name}.attention",
            "Write 'auto' (its own kernels) or 'vanilla' (not its own kernels, which costs speed).",
            code="unsupported",
        )


def _program(context: Context) -> tuple[Path, Release]:
    """The program and its release.

    Raises: ToolkitError when it is not installed, or does not serve.
    """
    found, where = context.program, f"services.{context.name}.environment"
    if found is None:
        return Path(PROGRAM), release(None, where)
    if found.version is None and found.origin == "installed":
        raise ToolkitError(
            f"TensorRT-LLM is not installed in the environment of {context.python}",
            where,
            "Name the environment that has it; 'coexist check' lists what each holds.",
            code="no_program",
        )
    return found.executable, release(found.version, where)


def _check_budget(context: Context, memory: KvCache) -> None:
    """A sharer of a GPU that nothing holds to its part would take its neighbours' memory.

    Where the models are not at hand (a plan for another machine) nothing is known of any, and nothing starts.
    """
    here = context.program is not None and context.program.origin == "installed"
    if context.service.gpus.share and here and not memory.bounded:
        raise ToolkitError(
            "how much of its budget its weights take is not known, so it can't be held to its part of a shared GPU",
            f"services.{context.name}.gpus.share",
            "Name 'model' in its recipe, or give it a GPU of its own.",
            code="no_budget",
        )
