"""``triton``: tritonserver, for a TensorRT-LLM engine in a repository made here, or for a repository that is there."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from packaging.utils import canonicalize_name

from toolkit.config.models import HttpRequest, Service
from toolkit.environments.model import Environment
from toolkit.errors import ToolkitError
from toolkit.runtimes import devices, triton_options
from toolkit.runtimes import environment as variables
from toolkit.runtimes.base import Assignment, Context, Launch, Program, Traits
from toolkit.runtimes.triton_job import Job

PROGRAM = "tritonserver"
TRAPS = (
    "a warm-up of an ensemble is ignored: only that of the inner model runs",
    "a warm-up that failed can leave it READY: its log is searched for that",
    "GPUs of an instance group are ignored by the TensorRT-LLM back end: gpu_device_ids is what counts",
    "lengths and batch sizes are the engine's: what config.pbtxt says of them is ignored",
    "two servers with one prefix in shared memory break each other's Python models",
    "it unloads its models at TERM while requests still come",
    "its memory fraction is of what is free when the KV cache is made",
)


class TritonRuntime:
    """``tritonserver``."""

    name = "triton"
    looks_inside = True
    traits = Traits(
        can_drain=False,
        answers_before_ready=True,
        memory_knob="kv_cache_free_gpu_mem_fraction and max_tokens_in_paged_kv_cache of the engine's model",
        readiness="/v2/health/ready runs no inference; one answer of generate, or the canary, does",
        warmup="model_warmup of the engine's own model in growing lengths, then answers over HTTP",
        affinity="keeps the mask it was given; several ranks are pinned one by one",
        traps=TRAPS,
    )

    def __init__(self, as_root: bool | None = None) -> None:
        """``as_root``: mpirun must be told that it may run as that; None: as this process is."""
        self._as_root = os.geteuid() == 0 if as_root is None else as_root

    def check(self, name: str, service: Service) -> None:
        """Raises ToolkitError when the service asks for what this program does not offer."""
        variables.check(name, service.env)
        given = triton_options.read(name, service.options)
        if service.engine is not None:
            devices.check(name, service)
        for fault in (_engine_fault(name, service, given), _repository_fault(name, service, given)):
            if fault is not None:
                raise fault
        if service.attention != "auto":
            hint = "Remove it: an engine's attention is chosen when it is built."
            raise ToolkitError("Triton chooses no attention", f"services.{name}.attention", hint, code="unsupported")
        if not _has_canary(service, given):
            raise ToolkitError(
                "nothing tells whether this service answers rightly: its models are asked in shapes of their own",
                f"services.{name}.canary",
                'Write for example canary: {method: POST, path: /v2/models/NAME/infer, body: {…}, contains: "…"}.',
                code="no_canary",
            )

    def program(self, environment: Environment | None, python: Path, declared: Mapping[str, str]) -> Program | None:
        """``tritonserver`` from PATH, which begins beside the interpreter; no package says its release."""
        stated = {str(canonicalize_name(key)): value for key, value in declared.items()}
        found = {each.name: each.version or "" for each in environment.distributions} if environment else {}
        version, packages = stated.get(PROGRAM), {**stated, **found}
        return Program(PROGRAM, version, Path(PROGRAM), "declared" if version else "assumed", packages=packages)

    def launch(self, context: Context, assignment: Assignment) -> Launch:
        """The process for this service on these resources.

        Raises: ToolkitError when the engine cannot be served so, or the repository would not do what it says.
        """
        given = triton_options.read(context.name, context.service.options)
        return Job(context, assignment, given).launch(self._as_root)


def _engine_fault(name: str, service: Service, given: triton_options.Given) -> ToolkitError | None:
    if service.engine is None:
        return None
    if given.fill and given.backend_dir is None:
        hint = "Write 'backend_dir' too, or remove it."
        return ToolkitError("'fill' fills templates", f"services.{name}.options.fill", hint, code="bad_option")
    return None


def _repository_fault(name: str, service: Service, given: triton_options.Given) -> ToolkitError | None:
    """What is for engines only."""
    if service.engine is not None:
        return None
    if service.fmha is not None:
        hint = "Remove it: what a repository serves is written in it."
        return ToolkitError("'fmha' is for engines", f"services.{name}.fmha", hint, code="unsupported")
    extra = [*given.settings, *(key for key in ("backend_dir", "entry", "fill") if key in service.options)]
    if extra or service.world_size > 1:
        where = f"services.{name}.options.{extra[0]}" if extra else f"services.{name}.tp_size"
        what = f"'{where.rpartition('.')[2]}' is for an engine, and this service has a repository of its own"
        return ToolkitError(what, where, "Write it in the repository's config.pbtxt.", code="unsupported")
    return None


def _has_canary(service: Service, given: triton_options.Given) -> bool:
    """A prompt is enough where text goes in and comes out."""
    return isinstance(service.canary, HttpRequest) or (service.engine is not None and given.backend_dir is not None)
