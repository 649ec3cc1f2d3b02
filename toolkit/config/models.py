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

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


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
    """One Python environment; programs are looked up beside its interpreter."""

    python: Path


class EngineUse(Model):
    """An engine of the deployment: which recipe builds it, and in which environment."""

    recipe: Path
    environment: Name | None = None


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
    devices: tuple[Annotated[int | str, BeforeValidator(_device)], ...] = ()
    share: bool = False

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
    max_tokens: PositiveInt = 8
    expected: Text | None = None


class HttpRequest(Model):
    """A request that a ``command`` service answers: its canary, or one that warms it."""

    method: Literal["GET", "POST"] = "GET"
    path: UrlPath = "/"
    body: Any = None
    status: Annotated[int, Field(ge=100, le=599, strict=True)] = 200
    contains: Text | None = None


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
    log: Annotated[Text, AfterValidator(_regular_expression)] | None = None


class Restart(Model):
    """How often a service may be restarted inside a sliding window before it counts as failed."""

    max_restarts: CountInt = 5
    window: DurationS = 600.0


class Service(Model):
    """One service; ``options`` are checked against the program's release by its runtime."""

    runtime: RuntimeName
    engine: Name | None = None
    model: Path | None = None
    environment: Name | None = None
    gpus: Annotated[
        GpuRequest, BeforeValidator(_gpus, json_schema_input_type=int | str | list[int | str] | GpuRequest)
    ] = GpuRequest()
    tp_size: PositiveInt = 1
    pp_size: PositiveInt = 1
    nvlink: Literal["required", "preferred"] = "preferred"
    gpu_memory: SizeBytes | None = None
    cpus: CpuRequest = "auto"
    host: Text = "127.0.0.1"
    port: Port | None = None
    attention: Attention = "auto"
    fmha: Literal["enable", "disable"] | None = None
    canary: AnyCanary | None = None
    late_compile: Literal["warn", "drain"] = "warn"
    restart: Restart = Restart()
    env: dict[VariableName, str] = {}
    options: dict[str, Any] = {}
    after: tuple[Name, ...] = ()
    requires: tuple[Name, ...] = ()
    warmup: Warmup = "full"
    warmup_requests: tuple[HttpRequest, ...] = ()
    argv: tuple[Text, ...] = ()
    ready: Ready = Ready()
    grace: DurationS = 10.0
    preload_window: DurationS | None = None


class Deployment(Model):
    """What runs together on one node."""

    version: Literal[1]
    name: Name
    environments: dict[Name, Environment] = {}
    engines: dict[Name, EngineUse] = {}
    services: Annotated[dict[Name, Service], Field(min_length=1)]
    control_port: Annotated[int, Field(ge=0, le=65535, strict=True)] | None = None


class Limits(Model):
    """Sizes an engine is built for; tokens and requests."""

    max_batch_size: PositiveInt = 4
    max_input_len: PositiveInt = 1024
    max_seq_len: PositiveInt = 2048
    max_num_tokens: PositiveInt = 8192

    @model_validator(mode="after")
    def _input_fits(self) -> Limits:
        if self.max_input_len > self.max_seq_len:
            raise ValueError(f"max_input_len {self.max_input_len} is over max_seq_len {self.max_seq_len}")
        return self


class KvCache(Model):
    """The engine's key-value cache; ``reuse`` shares the blocks of equal prefixes."""

    type: Literal["paged", "continuous", "disabled"] = "paged"
    tokens_per_block: PositiveInt = 32
    reuse: bool = False


class Recipe(Model):
    """How one engine is built."""

    version: Literal[1]
    name: Name
    builder: Literal["trtllm", "torch"]
    model: Path | None = None
    checkpoint: Path | None = None
    convert_script: Path | None = None
    tp_size: PositiveInt = 1
    pp_size: PositiveInt = 1
    fmha: Literal["enable", "disable"] = "enable"
    dtype: Literal["auto", "float32", "float16", "bfloat16"] = "auto"
    limits: Limits = Limits()
    kv_cache: KvCache = KvCache()
    canary: Canary = Canary()
    options: dict[str, Any] = {}
