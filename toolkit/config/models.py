"""The two files a person writes, as frozen models. Reading them is ``config.load``'s work."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    model_validator,
)

from toolkit.units import parse_bytes, parse_cpu_list, parse_duration_s


class Model(BaseModel):
    """Frozen; unknown keys are refused."""

    model_config = ConfigDict(use_attribute_docstrings=True, extra="forbid", frozen=True, protected_namespaces=())


def _size(value: object) -> object:
    return parse_bytes(value) if isinstance(value, str) else _no_bare_number(value, "size", "60GiB")


def _duration(value: object) -> object:
    return parse_duration_s(value) if isinstance(value, str) else _no_bare_number(value, "duration", "30s")


def _no_bare_number(value: object, kind: str, example: str) -> object:
    if isinstance(value, (int, float)):
        raise ValueError(f"{value} is not a {kind}; write a number and a unit, such as {example}")
    return value


def _cpu_request(value: object) -> object:
    """Always of the declared type or refused here, so that a person reads one sentence and no union's branches."""
    if value == "auto" or (isinstance(value, int) and not isinstance(value, bool) and value >= 1):
        return value
    if isinstance(value, str) and (cpus := parse_cpu_list(value)):
        return cpus
    if isinstance(value, (list, tuple)) and value and all(type(cpu) is int and cpu >= 0 for cpu in value):
        return tuple(value)
    raise ValueError(f"{value!r:.60} is no CPU request; write auto, a number from 1, or a list such as '0-15,32-47'")


def _positive(value: float) -> float:
    if value <= 0:
        raise ValueError("must be more than zero")
    return value


def _regular_expression(value: str) -> str:
    try:
        re.compile(value)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"'{value}' is not a regular expression: {error}") from error
    return value


def _volume(value: str) -> str:
    if re.fullmatch(r"/[^:,\n]*:/[^:,\n]*(:r[ow])?", value) is None:
        raise ValueError(f"'{value}' is no volume; write /here:/there, or /here:/there:ro")
    return value


SizeBytes = Annotated[int, BeforeValidator(_size, json_schema_input_type=str), AfterValidator(_positive)]
DurationS = Annotated[float, BeforeValidator(_duration, json_schema_input_type=str), AfterValidator(_positive)]
PositiveInt = Annotated[int, Field(ge=1, strict=True)]
CountInt = Annotated[int, Field(ge=0, strict=True)]
Port = Annotated[int, Field(ge=1, le=65535, strict=True)]
Text = Annotated[str, Field(min_length=1)]
Name = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9_.-]{0,61}[a-z0-9])?$")]
VariableName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
UrlPath = Annotated[str, Field(pattern=r"^/")]
CpuRequest = Annotated[
    Literal["auto"] | int | tuple[int, ...],
    BeforeValidator(_cpu_request, json_schema_input_type=int | str | list[int]),
]
RuntimeName = Literal["trtllm", "triton", "vllm", "sglang", "transformers", "torch", "flash", "command"]
Attention = Literal["auto", "fa4", "fa3", "fa2", "sdpa", "vanilla"]
Warmup = Literal["none", "single", "full"]


class Environment(Model):
    """Where programs are looked up: beside a Python interpreter, or inside a container image."""

    python: Path | None = None
    """The interpreter itself, or a link to it; with 'image' its path in there."""
    image: Text | None = None
    """A container image instead: its services run in containers."""
    versions: dict[Text, Text] = {}
    """Versions of its packages, for what can't be looked into here: an image, another machine."""
    program: Literal["docker", "podman"] = "docker"
    """What runs the containers of an image."""
    shm_size: SizeBytes = Field(default=1 << 30, json_schema_extra={"default": "1GiB"})
    """Shared memory of each container; ranks and Python back ends hand tensors over in it."""
    ulimits: dict[Text, int] = {}
    """Limits in the container beside memlock -1 and stack 67108864, which they replace; -1: none."""
    volumes: tuple[Annotated[Text, AfterValidator(_volume)], ...] = ()
    """More of this machine in the container: /here:/there, or /here:/there:ro."""

    @model_validator(mode="after")
    def _somewhere(self) -> Environment:
        if self.python is None and self.image is None:
            raise ValueError("name 'python' (the interpreter) or 'image' (a container image)")
        if self.image is None and (
            only := sorted({"program", "shm_size", "ulimits", "volumes"} & self.model_fields_set)
        ):
            raise ValueError(f"{', '.join(only)}: for an environment with 'image' only")
        return self

    @property
    def interpreter(self) -> Path:
        """The interpreter as written; an image has its own."""
        return self.python or Path("python3")


class EngineUse(Model):
    """An engine of the deployment: the recipe that builds it, or one that was adopted, and its environment."""

    recipe: Path | None = None
    """The recipe file."""
    adopted: Text | None = None
    """Instead of a recipe: name or fingerprint of a TensorRT-LLM engine in the store ('coexist engines adopt DIR')."""
    model: Path | None = None
    """With 'adopted': the model's folder in the format of Hugging Face, for tokenizer and right answers."""
    environment: Name | None = None
    """Where it is built and served; left out: coexist's own."""

    @model_validator(mode="after")
    def _one_source(self) -> EngineUse:
        if (self.recipe is None) == (self.adopted is None):
            raise ValueError("write either 'recipe' (a file) or 'adopted' (an engine in the store)")
        if self.recipe is not None and self.model is not None:
            raise ValueError("'model' goes with 'adopted'; a recipe names its own")
        return self


def _device(value: object) -> int | str:
    """An index as a number, a UUID as text; a quoted index is an index too."""
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,4}", value):
        return int(value)
    if type(value) is int and value >= 0:
        return value
    if isinstance(value, str) and re.fullmatch(r"[A-Za-z0-9/-]+", value):
        return value
    raise ValueError(f"{value!r:.60} is no GPU; write an index (0), a UUID (GPU-8932f937), or a list of them")


class GpuRequest(Model):
    """GPUs a service asks for: a count, or exact devices (indices or UUIDs, full, prefix or MIG)."""

    count: CountInt = 0
    """How many."""
    devices: tuple[Annotated[int | str, BeforeValidator(_device)], ...] = ()
    """Exactly these: indices as nvidia-smi counts, UUIDs (full or a prefix), MIG UUIDs."""
    share: bool = False
    """Other services that also say so may use the same GPU; needs a known memory budget."""

    @model_validator(mode="after")
    def _one_way(self) -> GpuRequest:
        if len(set(self.devices)) != len(self.devices):
            raise ValueError("a GPU is named twice")
        if self.devices and self.count not in {0, len(self.devices)}:
            raise ValueError(f"count is {self.count}, but {len(self.devices)} devices are named; leave count out")
        return self

    @property
    def size(self) -> int:
        """How many GPUs that is."""
        return len(self.devices) or self.count


def _gpus(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("write a number of GPUs, a list of indices or UUIDs, or {count: 1, share: true}")
    if isinstance(value, int):
        return {"count": value}
    if isinstance(value, str):
        return {"devices": [value]}
    if isinstance(value, list):
        return {"devices": value}
    return value


class Canary(Model):
    """A request with a known right answer."""

    prompt: Text = "The capital of France is"
    """What is asked, greedily."""
    max_tokens: PositiveInt = 8
    """How many tokens are compared."""
    expected: Text | None = None
    """What the answer must begin with; left out: the engine's own recorded tokens."""


class HttpRequest(Model):
    """A request that a ``command`` service answers: its canary, or one that warms it."""

    method: Literal["GET", "POST"] = "GET"
    """GET or POST."""
    path: UrlPath = "/"
    """Path on the service's port."""
    body: Any = None
    """Sent as JSON."""
    status: Annotated[int, Field(ge=100, le=599, strict=True)] = 200
    """The status that is right."""
    contains: Text | None = None
    """A text that must be in the answer."""


def _canary_kind(value: object) -> str:
    keys = set(value) if isinstance(value, dict) else set()
    request = isinstance(value, HttpRequest) or keys & set(HttpRequest.model_fields)
    return "request" if request else "tokens"


AnyCanary = Annotated[
    Annotated[Canary, Tag("tokens")] | Annotated[HttpRequest, Tag("request")], Discriminator(_canary_kind)
]


class Ready(Model):
    """When a ``command`` service is up: an HTTP path on its port, or a line of its log (a regular expression)."""

    path: UrlPath | None = None
    """Up once a GET of this path gives 200."""
    log: Annotated[Text, AfterValidator(_regular_expression)] | None = None
    """Up once a line of its log matches."""


class Restart(Model):
    """How often a service may be restarted inside a sliding window before it counts as failed."""

    max_restarts: CountInt = 5
    """More than so many in the window end it as FAILED."""
    window: DurationS = Field(default=600.0, json_schema_extra={"default": "10min"})
    """The sliding window."""


class Service(Model):
    """One service; ``options`` are checked against the program's release by its runtime."""

    runtime: RuntimeName
    """The server program."""
    engine: Name | None = None
    """Name of an engine under 'engines'."""
    model: Path | None = None
    """A model folder in the format of Hugging Face."""
    environment: Name | None = None
    """Name of an environment under 'environments'; left out: coexist's own."""
    gpus: Annotated[
        GpuRequest, BeforeValidator(_gpus, json_schema_input_type=int | str | list[int | str] | GpuRequest)
    ] = GpuRequest()
    """A count, an index, a UUID, a list of them, or {count: 1, share: true}. None by default."""
    tp_size: PositiveInt = 1
    """Tensor-parallel size: GPUs of one group."""
    pp_size: PositiveInt = 1
    """Pipeline-parallel size."""
    nvlink: Literal["required", "preferred"] = "preferred"
    """Whether a tensor-parallel group must be joined by NVLink."""
    gpu_memory: SizeBytes | None = None
    """Budget on each of its GPUs, without the CUDA context; left out: derived from the engine or model."""
    cpus: CpuRequest = "auto"
    """A number (exclusive logical CPUs, whole cores), a list (0-15,32-47), or 'auto': a share of what is left."""
    host: Text = "127.0.0.1"
    """Address it listens on; anything but loopback lets others in."""
    port: Port | None = None
    """Left out: one is picked, from 8001 on."""
    attention: Attention = "auto"
    """Attention kernels of 'flash' and PyTorch servers; auto picks by GPU."""
    fmha: Literal["enable", "disable"] | None = None
    """Fused attention an engine must have been built with, or without."""
    canary: AnyCanary | None = None
    """A request with a known right answer, right before READY. For 'command' and models of 'triton' an HTTP request."""
    late_compile: Literal["warn", "drain"] = "warn"
    """After READY something compiled: only tell, or withdraw readiness and start anew."""
    restart: Restart = Restart()
    """How often it is started again."""
    env: dict[VariableName, str] = {}
    """Variables of its own, put in last."""
    options: dict[str, Any] = {}
    """Flags of the program, checked against its release."""
    after: tuple[Name, ...] = ()
    """Starts only when these are SERVING."""
    requires: tuple[Name, ...] = ()
    """Not ready while these are not SERVING; it starts all the same."""
    warmup: Warmup = "full"
    """What runs before READY: every shape, one request, or only the canary."""
    warmup_requests: tuple[HttpRequest, ...] = ()
    """What warms a 'command' service, or models of 'triton' that are asked in shapes of their own."""
    argv: tuple[Text, ...] = ()
    """The command of a 'command' service; {port}, {host}, {model}, {cpus}, {python} and {logs} are filled in."""
    ready: Ready = Ready()
    """When a 'command' service is up."""
    grace: DurationS = Field(default=10.0, json_schema_extra={"default": "10s"})
    """From TERM to KILL."""
    preload_window: DurationS | None = None
    """Time to load, and to warm up; more while progress is seen. Left out: 30s for built-in servers, else 15min."""
    quiet_window: DurationS | None = None
    """How long a start may show no progress before it is ended; left out: 30s, or its window where that is less."""

    @property
    def world_size(self) -> int:
        """How many ranks it has; each needs a GPU."""
        return self.tp_size * self.pp_size


class Deployment(Model):
    """What runs together on one node."""

    version: Literal[1]
    """Of this format."""
    name: Name
    """Names its state folder."""
    environments: dict[Name, Environment] = {}
    """Python environments by name."""
    engines: dict[Name, EngineUse] = {}
    """Engines by name."""
    services: Annotated[dict[Name, Service], Field(min_length=1)]
    """Services by name."""
    control_port: Annotated[int, Field(ge=0, le=65535, strict=True)] | None = None
    """Port of the HTTP API on loopback; left out or 0: a free one."""
    on_supervisor_death: Literal["kill", "keep"] = "kill"
    """When coexist itself is killed: nothing is left within 5 s, or services run on and the next 'up' adopts them."""


class Limits(Model):
    """Sizes an engine is built for; tokens and requests."""

    max_batch_size: PositiveInt = 4
    """Requests that decode together."""
    max_input_len: PositiveInt = 1024
    """Tokens of one prompt."""
    max_seq_len: PositiveInt = 2048
    """Tokens of prompt and answer together."""
    max_num_tokens: PositiveInt = 8192
    """Tokens of one step over all requests."""

    @model_validator(mode="after")
    def _input_fits(self) -> Limits:
        if self.max_input_len > self.max_seq_len:
            raise ValueError(f"max_input_len {self.max_input_len} is over max_seq_len {self.max_seq_len}")
        return self


class KvCache(Model):
    """The engine's key-value cache; ``reuse`` shares the blocks of equal prefixes."""

    type: Literal["paged", "continuous", "disabled"] = "paged"
    """How the cache is kept."""
    tokens_per_block: PositiveInt = 32
    """Size of a block."""
    reuse: bool = False
    """Whether prefixes are shared between requests."""


class Recipe(Model):
    """How one engine is built."""

    version: Literal[1]
    """Of this format."""
    name: Name
    """Names the engine."""
    builder: Literal["trtllm", "torch"]
    """What makes it."""
    model: Path | None = None
    """Hugging Face folder: weights, tokenizer, reference answers."""
    checkpoint: Path | None = None
    """Converted TensorRT-LLM checkpoint; made from model with convert_script when missing."""
    convert_script: Path | None = None
    """The conversion script of the release; it is not part of the wheels."""
    tp_size: PositiveInt = 1
    """Tensor-parallel size."""
    pp_size: PositiveInt = 1
    """Pipeline-parallel size."""
    fmha: Literal["enable", "disable"] = "enable"
    """Fused attention in the context phase."""
    dtype: Literal["auto", "float32", "float16", "bfloat16"] = "auto"
    """Of weights and arithmetic; auto: the model's, where the device is fast in it."""
    limits: Limits = Limits()
    """Sizes the engine is built for."""
    kv_cache: KvCache = KvCache()
    """How keys and values are kept."""
    canary: Canary = Canary()
    """Recorded from the plain model, then asked of the engine."""
    options: dict[str, Any] = {}
    """Passed on to the builder, after being checked."""
