"""What the rest of coexist knows of a server program: a launch and its probes, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from toolkit.canaries import CanarySet
from toolkit.config.models import Deployment, Recipe, Service
from toolkit.environments.model import Environment
from toolkit.facts.options import OptionTable

PRELOAD_WINDOW_S = 900.0  # of programs that are not coexist's own, until their own starts have taught another


@dataclass(frozen=True)
class HttpProbe:
    """One request to the instance's own port. ``headers`` may hold the attempt's token, so it is never logged.

    ``adapter``: the LoRA adapter that it runs, for the name of what it warms.
    """

    path: str
    method: Literal["GET", "POST"] = "GET"
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    expect_status: int = 200
    expect_text: str | None = None
    timeout_s: float = 30.0
    adapter: str | None = None


@dataclass(frozen=True)
class LogProbe:
    """A line of the instance's log that matches ``pattern`` (a regular expression)."""

    pattern: str


@dataclass(frozen=True)
class Generation:
    """How tokens (or one whole answer) are asked for; the body is ``body`` with prompt and length put in.

    ``kind``: ``completions`` (OpenAI streaming, first content token is the first token), ``embeddings``
    (time to the whole answer) or ``request`` (a fixed request; time to the whole answer). ``token_ids``: the server
    tells an answer's tokens when ``return_token_ids`` asks for them; others may refuse that. ``wire``: OpenAI's shapes,
    or Triton's generate extension below the ``path`` of a model, which takes text (``triton``) or token ids.
    """

    kind: Literal["completions", "embeddings", "request"]
    path: str
    model: str | None = None
    max_input_tokens: int | None = None
    request: HttpProbe | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    token_ids: bool = False
    wire: Literal["openai", "triton", "triton_ids"] = "openai"


@dataclass(frozen=True)
class CanaryCheck:
    """What proves the answer right.

    ``expected_tokens``/``expected_text`` for completions, ``expected_vector`` with ``min_cosine`` for embeddings,
    ``request`` for anything else. ``repeats_only``: nobody knows what is right; the canary set shows repeats to agree.
    """

    prompt: str = ""
    max_tokens: int = 8
    expected_tokens: tuple[int, ...] | None = None
    expected_text: str | None = None
    expected_vector: tuple[float, ...] | None = None
    min_cosine: float = 0.999
    request: HttpProbe | None = None
    repeats_only: bool = False


@dataclass(frozen=True)
class Probes:
    """Everything the warm-up and the supervisor ask of one instance.

    ``loaded``: true once PRELOAD is over. ``stage``: tells its parts and counts compiles (built-in servers only).
    ``warmup``: requests that run every shape. ``register``: makes a built-in server answer everybody.
    ``canary_set``: what reaches cached blocks and chunks, asked beside ``canary``.
    ``metrics``: a Prometheus page that counts tokens or requests, which tells busy from hung.
    ``unseen``: what shapes also depend on and no request can be seen to reach (``experts``).
    """

    loaded: HttpProbe | LogProbe | None
    live: HttpProbe | None = None
    deep: HttpProbe | None = None
    stage: HttpProbe | None = None
    warmup: tuple[HttpProbe, ...] = ()
    canary: CanaryCheck | None = None
    canary_set: CanarySet | None = None
    generation: Generation | None = None
    register: HttpProbe | None = None
    drain: HttpProbe | None = None
    metrics: HttpProbe | None = None
    unseen: tuple[str, ...] = ()


@dataclass(frozen=True)
class LogCheck:
    """What the log must say, or must not say, once the instance has loaded; ``why`` ends the attempt otherwise."""

    pattern: str
    why: str
    wanted: bool = False


@dataclass(frozen=True)
class Container:
    """The container that the process is the client of: ``id_file`` is written by ``program``, which also stops it.

    ``client_env``: what ``program`` is called with; ``env``: what the process in the container gets.
    """

    program: str
    id_file: Path
    client_env: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Launch:
    """One process to start: complete argv and complete environment (nothing is inherited).

    ``files``: what must be there before it starts, by absolute path. ``log_checks``: asked once it has loaded.
    ``rank_logs``: its ranks write a file each below ``Context.log_dir``, at any depth.
    ``programs``: others that ``argv`` names, which must be there too. ``ports``: others it listens on, by what for.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    probes: Probes
    cwd: Path | None = None
    preload_window_s: float = PRELOAD_WINDOW_S
    notes: tuple[str, ...] = ()
    files: Mapping[Path, str] = field(default_factory=dict)
    log_checks: tuple[LogCheck, ...] = ()
    container: Container | None = None
    rank_logs: bool = False
    programs: tuple[str, ...] = ()
    ports: Mapping[str, int] = field(default_factory=dict)

    @property
    def own_env(self) -> Mapping[str, str]:
        """What the server itself gets, which in a container is not what its client gets."""
        return self.env if self.container is None else self.container.env


@dataclass(frozen=True)
class DeviceMemory:
    """How the plan divides one device's memory, in bytes; None: unknown. ``runtimes.knobs`` makes a program's number.

    ``budget_bytes``: the service's own, without its CUDA context (``context_bytes``); ``fixed_bytes`` of it is all but
    the KV cache, ``weights_bytes`` a part of that. ``kv_bytes_per_token`` 0: no KV cache. ``free_bytes``: free before
    the service starts its first time, when who starts later holds nothing yet; ``free_beside_all_bytes``: when every
    neighbour holds its own.
    """

    total_bytes: int | None = None
    budget_bytes: int | None = None
    context_bytes: int = 0
    fixed_bytes: int | None = None
    kv_bytes_per_token: int | None = None
    tokens_per_block: int | None = None
    free_bytes: int | None = None
    free_beside_all_bytes: int | None = None
    weights_bytes: int | None = None

    @property
    def kv_bytes(self) -> int | None:
        """What the budget leaves for the KV cache."""
        if self.budget_bytes is None or self.fixed_bytes is None:
            return None
        return max(0, self.budget_bytes - self.fixed_bytes)


@dataclass(frozen=True)
class Assignment:
    """What the plan gives one service; the runtime turns it into argv and environment.

    ``device_uuids`` in plan order; ``budget_bytes`` per device, None: unknown. ``physical_cores``: how many the
    logical ``cpus`` belong to; None: as many as there are ``cpus``. ``rank_cpus``: the part of ``cpus`` beside each
    device, in its order; empty: ranks are not told apart. ``memory``: the ledger's view of each device, in its order;
    ``compute_capabilities`` (``9.0``) too.
    """

    cpus: tuple[int, ...]
    port: int
    device_uuids: tuple[str, ...] = ()
    device_indices: tuple[int, ...] = ()
    budget_bytes: tuple[int | None, ...] = ()
    numa_nodes: tuple[int, ...] = ()
    memory_bind: tuple[int, ...] | None = None
    physical_cores: int | None = None
    rank_cpus: tuple[tuple[int, ...], ...] = ()
    memory: tuple[DeviceMemory, ...] = ()
    compute_capabilities: tuple[str | None, ...] = ()


@dataclass(frozen=True)
class Program:
    """The server program of a service's environment. ``version`` None: not known; ``options`` None: nothing tells.

    ``origin``: ``installed`` was read from its files, ``declared`` stands in the deployment, ``assumed`` is neither.
    ``packages``: versions of the others in the environment, by normalised name. ``executable``: what is started.
    ``features``: what its own files say it does, by the name that facts have for it.
    """

    name: str
    version: str | None
    executable: Path
    origin: Literal["installed", "declared", "assumed"]
    options: OptionTable | None = None
    packages: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    features: Mapping[str, bool] = field(default_factory=dict)


@dataclass(frozen=True)
class Traits:
    """What a program offers, whatever its release; ``traps``: what is known to go wrong with it.

    ``answers_before_ready``: whoever knows its port gets answers while coexist still warms it.
    """

    can_drain: bool
    answers_before_ready: bool
    memory_knob: str
    readiness: str
    warmup: str
    affinity: str
    traps: tuple[str, ...] = ()


@dataclass(frozen=True)
class Context:
    """Where the service runs: resolved paths and what its engine says of itself (``engine.json``) when it has one.

    ``reference``: the recorded right answer of a service without an engine (``prompt``, ``vector``, ``source``).
    ``environ``: the variables of coexist itself; a launch takes a named few of them. ``program``: what is installed;
    None for the built-in servers and ``command``. ``run_dir``: where the files of a launch go. ``tokenizer_dir``: the
    Hugging Face folder that the weights come from, where it is known and there. ``log_dir``: where ranks may write a
    log each.
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
    program: Program | None = None
    run_dir: Path = Path("run")
    tokenizer_dir: Path | None = None
    log_dir: Path = Path("logs")


class Runtime(Protocol):
    """One server program. ``looks_inside``: ``program`` wants to know what the environment holds."""

    name: str
    looks_inside: bool
    traits: Traits

    def check(self, name: str, service: Service) -> None:
        """Raises ToolkitError when the service asks for what this program does not offer."""

    def program(self, environment: Environment | None, python: Path, declared: Mapping[str, str]) -> Program | None:
        """The program in an environment, from its files alone; ``declared``: versions that the deployment states.

        ``environment`` None: it cannot be looked into (a container image, another machine). None for programs that
        are coexist's own or the deployment's ``argv``.
        """

    def launch(self, context: Context, assignment: Assignment) -> Launch:
        """The process for this service on these resources."""
