"""What coexist's own two servers have in common: how they are started, asked and stopped."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toolkit.config.models import Service
from toolkit.errors import ToolkitError
from toolkit.runtimes import devices, environment, options
from toolkit.runtimes.base import Assignment, CanaryCheck, Context, Generation, HttpProbe, Launch, Probes, Traits
from toolkit.runtimes.options import Option
from toolkit.runtimes.service_notes import notes_of

RUN = Path(__file__).resolve().parents[1] / "serve" / "run.py"
TOKEN_HEADER = "X-Coexist-Token"  # noqa: S105  a header's name
PRELOAD_WINDOW_S = 30.0  # coexist's own servers load from a local disk and compile nothing then
# Warming every shape of a large engine on a slow machine.
WARMUP_TIMEOUT_S = 600.0


def traits(warmup: str) -> Traits:
    """What both built-in servers offer; ``warmup``: what they run before READY."""
    return Traits(
        can_drain=True,
        answers_before_ready=False,
        memory_knob="--memory-bytes: the budget itself",
        readiness="/v1/stage tells each part; /health is 200 only once registered; /health_generate runs one token",
        warmup=f"POST /v1/warmup: {warmup}",
        affinity="keeps the mask it was given; as many threads as physical cores",
    )


def check(name: str, service: Service, known: Mapping[str, Option]) -> None:
    """Raises ToolkitError when the service asks for what neither built-in server offers."""
    environment.check(name, service.env)
    options.argv(name, service.options, known)
    devices.check_one(name, service, f"runtime '{service.runtime}'", "Remove it, or use a runtime with {key}.")
    if service.gpus.size > 1:
        raise ToolkitError(
            f"runtime '{service.runtime}' uses one GPU, not {service.gpus.size}",
            f"services.{name}.gpus",
            "Ask for one, and start a second service for the next.",
            code="unsupported",
        )


def launch(
    context: Context, assignment: Assignment, *, argv: tuple[str, ...], probes: Probes, notes: tuple[str, ...]
) -> Launch:
    """The process: ``PYTHON run.py`` with ``argv`` and the flags that both servers have."""
    service = context.service
    return Launch(
        argv=(
            *(str(context.python), str(RUN), *argv),
            *("--host", service.host, "--port", str(assignment.port), "--device", device(assignment)),
            *_memory(assignment),
        ),
        env=environment.build(context, assignment),
        probes=probes,
        preload_window_s=service.preload_window or PRELOAD_WINDOW_S,
        notes=(*notes, *_notes(service, assignment)),
    )


def probes(token: str, warmup: str, canary: CanaryCheck, generation: Generation) -> Probes:
    """The probes of a built-in server, its shapes warmed as far as ``warmup`` says."""
    headers = {TOKEN_HEADER: token}
    shapes = HttpProbe("/v1/warmup", "POST", {"mode": warmup}, headers, timeout_s=WARMUP_TIMEOUT_S)
    return Probes(
        loaded=HttpProbe("/v1/stage", expect_text='"loaded"'),
        live=HttpProbe("/v1/stage"),
        deep=HttpProbe("/health_generate", headers=headers),
        stage=HttpProbe("/v1/stage"),
        warmup=() if warmup == "none" else (shapes,),
        canary=canary,
        generation=generation,
        register=HttpProbe("/v1/register", "POST", headers=headers),
        drain=HttpProbe("/v1/drain", "POST", headers=headers),
        metrics=HttpProbe("/metrics"),
    )


def device(assignment: Assignment) -> str:
    """``cuda`` when the plan gives a GPU, else ``cpu``."""
    return "cuda" if assignment.device_uuids else "cpu"


def headers(context: Context) -> Mapping[str, str]:
    """What lets coexist in before the service is registered."""
    return {TOKEN_HEADER: context.token}


def _memory(assignment: Assignment) -> tuple[str, ...]:
    budget_bytes = assignment.budget_bytes[0] if assignment.device_uuids and assignment.budget_bytes else None
    return () if budget_bytes is None else ("--memory-bytes", str(budget_bytes))


def _notes(service: Service, assignment: Assignment) -> tuple[str, ...]:
    useless = service.gpu_memory is not None and not assignment.device_uuids
    return (*notes_of(service), *(("gpu_memory has no effect without a GPU",) if useless else ()))


def number(facts: Mapping[str, Any] | None, *path: str) -> int | None:
    """The whole number at ``path`` in nested mappings; None when there is none."""
    value: Any = facts
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value if isinstance(value, int) else None
