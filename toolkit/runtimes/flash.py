"""``flash``: coexist's own PyTorch server for encoders, whose attention is FlashAttention where the GPU has it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toolkit.config.models import Canary, Service
from toolkit.environments.model import Environment
from toolkit.errors import ToolkitError
from toolkit.runtimes import builtin, devices
from toolkit.runtimes.base import Assignment, CanaryCheck, Context, Generation, Launch, Program
from toolkit.runtimes.options import Option, argv

OPTIONS = {
    "dtype": Option("--dtype", "text", ("auto", "float32", "float16", "bfloat16")),
    "max_batch": Option("--max-batch", "count"),
    "max_wait_ms": Option("--max-wait-ms", "number"),
    "max_queue": Option("--max-queue", "count"),
}
# Half precision on a GPU against float32 on a CPU; another model or a broken kernel is far below.
MIN_COSINE = 0.999


class FlashRuntime:
    """``run.py frontend``: embeddings, drains, nobody is answered before READY."""

    name = "flash"
    looks_inside = False
    traits = builtin.traits("texts in every batch size and length bucket")

    def check(self, name: str, service: Service) -> None:
        """Raises ToolkitError when the service asks for what this program does not offer."""
        builtin.check(name, service, OPTIONS)
        if service.fmha is not None:
            raise ToolkitError(
                "'fmha' is for engines",
                f"services.{name}.fmha",
                "Write 'attention: sdpa' or 'attention: vanilla'.",
                code="unsupported",
            )
        devices.check_attention(name, service)
        if isinstance(service.canary, Canary) and service.canary.expected is not None:
            raise ToolkitError(
                "the canary of embeddings is a recorded vector, not a text",
                f"services.{name}.canary.expected",
                "Remove it; coexist records the vector from plain transformers.",
                code="unsupported",
            )

    def program(self, environment: Environment | None, python: Path, declared: Mapping[str, str]) -> Program | None:
        """None: the server is coexist's own."""
        return None

    def launch(self, context: Context, assignment: Assignment) -> Launch:
        """The process for this service on these resources."""
        service = context.service
        model = context.model_dir.name if context.model_dir is not None else context.name
        generation = Generation("embeddings", "/v1/embeddings", model, headers=builtin.headers(context))
        flags = ("--model-dir", str(context.model_dir), "--attention", service.attention)
        return builtin.launch(
            context,
            assignment,
            argv=("frontend", *flags, "--served-model-name", model, *argv(context.name, service.options, OPTIONS)),
            probes=builtin.probes(context.token, service.warmup, canary_check(context), generation),
            notes=_notes(context.reference),
        )


def canary_prompt(service: Service) -> str:
    """The text of which the right vector is recorded and asked for."""
    return service.canary.prompt if isinstance(service.canary, Canary) else Canary().prompt


def canary_check(context: Context) -> CanaryCheck:
    """The vector recorded for this model; without one, nothing the service answers counts as right."""
    reference = context.reference or {}
    vector = reference.get("vector")
    return CanaryCheck(
        prompt=reference.get("prompt", canary_prompt(context.service)),
        expected_vector=tuple(vector) if vector else None,
        min_cosine=MIN_COSINE,
    )


def _notes(reference: Mapping[str, Any] | None) -> tuple[str, ...]:
    if reference is None or reference.get("source") != "coexist":
        return ()
    return ("its canary's vector comes from coexist's own encoder, not from transformers, which its environment lacks",)
