"""What the rest of coexist knows of a server program: a launch and its probes, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from toolkit.config.models import Deployment, Recipe, Service


@dataclass(frozen=True)
class HttpProbe:
    """One request to the instance's own port. ``headers`` may hold the attempt's token, so it is never logged."""

    path: str
    method: Literal["GET", "POST"] = "GET"
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    expect_status: int = 200
    expect_text: str | None = None
    timeout_s: float = 30.0


@dataclass(frozen=True)
class LogProbe:
    """A line of the instance's log that matches ``pattern`` (a regular expression)."""

    pattern: str


@dataclass(frozen=True)
class Generation:
    """How tokens (or one whole answer) are asked for; the body is ``body`` with prompt and length put in.

    ``kind``: ``completions`` (OpenAI streaming, first content token is the first token), ``embeddings``
    (time to the whole answer) or ``request`` (a fixed request; time to the whole answer).
    """

    kind: Literal["completions", "embeddings", "request"]
    path: str
    model: str | None = None
    max_input_tokens: int | None = None
    request: HttpProbe | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class CanaryCheck:
    """What proves the answer right.

    ``expected_tokens``/``expected_text`` for completions, ``expected_vector`` with ``min_cosine`` for embeddings,
    ``request`` for anything else.
    """

    prompt: str = ""
    max_tokens: int = 8
    expected_tokens: tuple[int, ...] | None = None
    expected_text: str | None = None
    expected_vector: tuple[float, ...] | None = None
    min_cosine: float = 0.999
    request: HttpProbe | None = None


@dataclass(frozen=True)
class Probes:
    """Everything the warm-up and the supervisor ask of one instance.

    ``loaded``: true once PRELOAD is over. ``stage``: JSON path that reports PRELOAD parts (built-in servers only).
    ``warmup``: requests that run every shape. ``register``: makes a built-in server answer everybody.
    ``compile_events``: JSON path with the counter ``compile_events``; None: not observable this way.
    """

    loaded: HttpProbe | LogProbe | None
    live: HttpProbe | None = None
    deep: HttpProbe | None = None
    stage: HttpProbe | None = None
    warmup: tuple[HttpProbe, ...] = ()
    canary: CanaryCheck | None = None
    generation: Generation | None = None
    register: HttpProbe | None = None
    drain: HttpProbe | None = None


@dataclass(frozen=True)
class Launch:
    """One process to start: complete argv and complete environment (nothing is inherited)."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    probes: Probes
    cwd: Path | None = None
    preload_window_s: float = 900.0
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Assignment:
    """What the plan gives one service; the runtime turns it into argv and environment.

    ``device_uuids`` in plan order; ``budget_bytes`` per device, None: unknown. ``physical_cores``: how many the
    logical ``cpus`` belong to; None: as many as there are ``cpus``.
    """

    cpus: tuple[int, ...]
    port: int
    device_uuids: tuple[str, ...] = ()
    device_indices: tuple[int, ...] = ()
    device_total_bytes: tuple[int | None, ...] = ()
    budget_bytes: tuple[int | None, ...] = ()
    numa_nodes: tuple[int, ...] = ()
    memory_bind: tuple[int, ...] | None = None
    physical_cores: int | None = None


@dataclass(frozen=True)
class Context:
    """Where the service runs: resolved paths and what its engine says of itself (``engine.json``) when it has one.

    ``reference``: the recorded right answer of a service without an engine (``prompt``, ``vector``, ``source``).
    ``environ``: the variables of coexist itself; a launch takes a named few of them.
    """

    deployment: Deployment
    name: str
    service: Service
    python: Path
    model_dir: Path | None
    engine_dir: Path | None
    engine_manifest: Mapping[str, Any] | None
    recipe: Recipe | None
    cache_dir: Path
    token: str
    reference: Mapping[str, Any] | None = None
    environ: Mapping[str, str] = field(default_factory=dict)


class Runtime(Protocol):
    """One server program."""

    name: str

    def check(self, name: str, service: Service) -> None:
        """Raises ToolkitError when the service asks for what this program does not offer."""

    def launch(self, context: Context, assignment: Assignment) -> Launch:
        """The process for this service on these resources."""
