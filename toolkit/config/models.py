"""The two files a person writes, as frozen models. Reading them is ``config.load``'s work."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

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
    if isinstance(value, str) and value != "auto":
        return parse_cpu_list(value)
    return value


SizeBytes = Annotated[int, BeforeValidator(_size, json_schema_input_type=str)]
DurationS = Annotated[float, BeforeValidator(_duration, json_schema_input_type=str)]
PositiveInt = Annotated[int, Field(ge=1, strict=True)]
Name = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9_.-]{0,61}[a-z0-9])?$")]
CpuRequest = Annotated[
    Literal["auto"] | PositiveInt | tuple[int, ...],
    BeforeValidator(_cpu_request, json_schema_input_type=int | str),
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


class GpuRequest(Model):
    """GPUs a service asks for: a count, or exact devices (indices or UUIDs, full, prefix or MIG)."""

    count: Annotated[int, Field(ge=0, strict=True)] = 0
    devices: tuple[int | str, ...] = ()
    share: bool = False


def _gpus(value: object) -> object:
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return {"count": value}
    if isinstance(value, str):
        return {"devices": [value]}
    if isinstance(value, list):
        return {"devices": value}
    return value


class Canary(Model):
    """A request with a known right answer."""

    prompt: str = "The capital of France is"
    max_tokens: PositiveInt = 8
    expected: str | None = None


class HttpRequest(Model):
    """A request that a ``command`` service answers: its canary, or one that warms it."""

    method: Literal["GET", "POST"] = "GET"
    path: str = "/"
    body: Any = None
    status: int = 200
    contains: str | None = None


class Ready(Model):
    """When a ``command`` service is up: an HTTP path on its port, or a line of its log (a regular expression)."""

    path: str | None = None
    log: str | None = None


class Restart(Model):
    max_restarts: Annotated[int, Field(ge=0, strict=True)] = 5
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
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=1, le=65535, strict=True)] | None = None
    attention: Attention = "auto"
    fmha: Literal["enable", "disable"] | None = None
    canary: Canary | HttpRequest | None = None
    late_compile: Literal["warn", "drain"] = "warn"
    restart: Restart = Restart()
    env: dict[str, str] = {}
    options: dict[str, Any] = {}
    after: tuple[Name, ...] = ()
    requires: tuple[Name, ...] = ()
    warmup: Warmup = "full"
    warmup_requests: tuple[HttpRequest, ...] = ()
    argv: tuple[str, ...] = ()
    ready: Ready = Ready()
    grace: DurationS = 10.0
    preload_window: DurationS | None = None


class Deployment(Model):
    """A deployment file. ``source`` is the file it came from, for messages and relative paths."""

    version: Literal[1]
    name: Name
    environments: dict[Name, Environment] = {}
    engines: dict[Name, EngineUse] = {}
    services: Annotated[dict[Name, Service], Field(min_length=1)]
    on_supervisor_death: Literal["kill", "keep"] = "kill"
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
