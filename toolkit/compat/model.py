"""The nouns of the check: what it is told, and what it says. Everything is frozen; unknown is None."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from toolkit.config.models import Deployment, Recipe, Service
from toolkit.environments.binaries import Binaries
from toolkit.environments.model import Conflict, Problem
from toolkit.facts import Facts
from toolkit.facts.model import Abi, capability
from toolkit.host.model import Gpu, Host

Severity = Literal["error", "warning", "note"]
Effect = Literal["none", "step", "unknown", "blocks"]
Verdict = Literal["runnable", "compatible", "unknown", "incompatible"]
Closest = Literal["same-process", "same-env", "same-gpu", "same-host", "apart"]

FLASH_PACKAGES = ("flash-attn", "flash-attn-3", "flashattn-hopper", "flash-attn-4")
SERVER_PACKAGES = ("tensorrt-llm", "vllm", "sglang", "sentence-transformers", "text-generation-inference")
# What 'check --json' lists of an environment, installed or not; the rest would bury it.
SHOWN_PACKAGES = (
    *("torch", "tensorrt-llm", "tensorrt", *FLASH_PACKAGES, "flashinfer-python", "vllm", "sglang", "sgl-kernel"),
    *("transformers", "triton", "xformers", "torchvision", "nvidia-cutlass-dsl", "mpi4py"),
)


@dataclass(frozen=True)
class EnvironmentView:
    """One Python environment as rules see it. ``packages``: version by normalised name; None: unreadable.

    ``requires``: each distribution's requirements as written. ``hypothetical``: versions that nobody installed, so
    tables are all there is. ``read`` false: it is on another machine, or in an ``image``. ``binaries`` None: not looked
    at.
    """

    name: str
    executable: str | None = None
    python: str | None = None
    packages: Mapping[str, str | None] = field(default_factory=dict)
    requires: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    conflicts: tuple[Conflict, ...] = ()
    problems: tuple[Problem, ...] = ()
    conda: Mapping[str, str] = field(default_factory=dict)
    torch: str | None = None
    torch_cuda: str | None = None
    torch_abi: Abi | None = None
    binaries: Binaries | None = None
    library_path: str | None = None
    hypothetical: bool = False
    read: bool = True
    image: str | None = None

    @property
    def shown_python(self) -> str:
        """The interpreter as it is written in commands."""
        return self.executable or "python"

    def has(self, package: str) -> bool:
        """Whether a distribution of this normalised name is there."""
        return package in self.packages

    @property
    def flash_packages(self) -> tuple[str, ...]:
        """The flash-attn distributions, of any generation."""
        return tuple(name for name in FLASH_PACKAGES if name in self.packages)


@dataclass(frozen=True)
class EngineFolder:
    """A built engine as its files tell. ``ranks``: size in bytes by file name; ``config_error``: why it is unreadable.

    ``recorded``: sizes that a manifest lists. ``manifest``: what coexist's own manifest says of the build.
    """

    name: str
    folder: Path
    config: Mapping[str, Any] | None = None
    config_error: str | None = None
    ranks: Mapping[str, int] = field(default_factory=dict)
    unreadable: tuple[str, ...] = ()
    recorded: Mapping[str, int] = field(default_factory=dict)
    manifest: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class ModelFolder:
    """A Hugging Face folder. ``faults``: what is missing or damaged, in words; ``weights_bytes``: of its weights."""

    folder: Path
    faults: tuple[str, ...] = ()
    weights_bytes: int | None = None
    config: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Lock:
    """A lock file of a kernel cache. ``held`` None: nobody can say; ``before_boot``: older than this boot."""

    path: Path
    age_s: float
    held: bool | None
    before_boot: bool


@dataclass(frozen=True)
class Cache:
    """A cache folder. ``variable``: what chooses it; ``filesystem``: its type, None: unknown."""

    path: Path
    variable: str
    filesystem: str | None = None
    network: bool = False


@dataclass(frozen=True)
class TritonModel:
    """One config.pbtxt of a Triton repository, as far as rules ask."""

    path: Path
    backend: str | None
    platform: str | None
    instance_gpus: bool
    gpu_device_ids: bool
    warmup: bool


@dataclass(frozen=True)
class PortHolder:
    """A port that is taken; ``owner`` None: nobody can say."""

    port: int
    owner: str | None = None


@dataclass(frozen=True)
class Mps:
    """What CUDA_MPS_PIPE_DIRECTORY names, and whether a daemon is behind it; None: unknown."""

    pipe_directory: str | None = None
    exists: bool | None = None
    daemon: bool | None = None


@dataclass(frozen=True)
class Mpi:
    """The MPI library that mpi4py of an environment loads, by its files. ``library``: path; None: found nowhere."""

    kind: Literal["openmpi", "mpich", "intel", "unknown"] | None = None
    library: str | None = None
    package: str | None = None


@dataclass(frozen=True)
class Surroundings:
    """What lies around the deployment, gathered beforehand. Empty and None: not looked at.

    ``environ``: variables of coexist itself. ``engines`` by engine, ``models`` by service, ``mpi`` by environment.
    ``unbuilt``: engines that have to be built first.
    """

    environ: Mapping[str, str] = field(default_factory=dict)
    engines: Mapping[str, EngineFolder] = field(default_factory=dict)
    models: Mapping[str, ModelFolder] = field(default_factory=dict)
    recipes: Mapping[str, Recipe] = field(default_factory=dict)
    mpi: Mapping[str, Mpi] = field(default_factory=dict)
    locks: tuple[Lock, ...] = ()
    caches: tuple[Cache, ...] = ()
    triton: tuple[TritonModel, ...] = ()
    ports: tuple[PortHolder, ...] = ()
    mps: Mps = Mps()
    unbuilt: tuple[str, ...] = ()


@dataclass(frozen=True)
class Role:
    """One service, or where there is no deployment an environment by itself.

    ``gpus``: those it may get; ``needed``: how many of them it takes, 0: none.
    """

    name: str
    environment: str
    runtime: str | None = None
    service: Service | None = None
    gpus: tuple[Gpu, ...] = ()
    needed: int = 0

    @property
    def world_size(self) -> int:
        """Processes that need a GPU each."""
        return self.service.world_size if self.service else 1


@dataclass(frozen=True)
class Case:
    """Everything a rule may look at."""

    facts: Facts
    environments: Mapping[str, EnvironmentView]
    roles: tuple[Role, ...] = ()
    host: Host | None = None
    surroundings: Surroundings = Surroundings()
    deployment: Deployment | None = None

    def roles_of(self, environment: str) -> tuple[Role, ...]:
        """The roles that run in an environment."""
        return tuple(role for role in self.roles if role.environment == environment)

    def gpus_of(self, environment: str) -> tuple[Gpu, ...]:
        """Every GPU that a role of this environment may get, each once."""
        return tuple({gpu.uuid: gpu for role in self.roles_of(environment) for gpu in role.gpus}.values())

    def wants_gpu(self, environment: str) -> bool:
        """Whether any role of this environment takes a GPU."""
        return any(role.needed for role in self.roles_of(environment))


@dataclass(frozen=True)
class Hit:
    """What a rule found: data for its texts in rules.yaml. ``severity`` and ``effect`` override those there.

    ``sources``: keys of the facts it rests on.
    """

    rule: str
    subject: str
    environment: str | None = None
    values: Mapping[str, object] = field(default_factory=dict)
    evidence: tuple[str, ...] = ()
    severity: Severity | None = None
    effect: Effect | None = None
    sources: tuple[str, ...] = ()


@dataclass(frozen=True)
class Finding:
    """One finding, ready to be told."""

    id: str
    severity: Severity
    subject: str
    environment: str | None
    what: str
    why: str
    fix: str
    evidence: tuple[str, ...]
    source: str
    effect: Effect

    def document(self) -> dict[str, Any]:
        """Its object in ``check --json``."""
        return {
            "id": self.id, "severity": self.severity, "subject": self.subject, "environment": self.environment,
            "what": self.what, "why": self.why, "fix": self.fix, "evidence": list(self.evidence),
            "source": self.source,
        }  # fmt: skip


@dataclass(frozen=True)
class Pair:
    """How close two may be, what that needs, and why."""

    a: str
    b: str
    closest: Closest
    needs: tuple[str, ...]
    why: str
    source: str

    def document(self) -> dict[str, Any]:
        """Its object in ``check --json``."""
        return {
            "a": self.a, "b": self.b, "closest": self.closest, "needs": list(self.needs), "why": self.why,
            "source": self.source,
        }  # fmt: skip


@dataclass(frozen=True)
class Report:
    """What the check says."""

    verdict: Verdict
    host: Mapping[str, Any]
    environments: Mapping[str, Mapping[str, Any]]
    pairs: tuple[Pair, ...]
    findings: tuple[Finding, ...]

    def document(self) -> dict[str, Any]:
        """The document of ``check --json``, less its schema number."""
        return {
            "verdict": self.verdict,
            "host": dict(self.host),
            "environments": {name: dict(each) for name, each in self.environments.items()},
            "pairs": [pair.document() for pair in self.pairs],
            "findings": [finding.document() for finding in self.findings],
        }


def sm_of(gpu: Gpu) -> int | None:
    """A GPU's compute capability as a number, 90 for 9.0."""
    return capability(gpu.compute_capability)


def named(gpus: tuple[Gpu, ...]) -> str:
    """GPUs for a sentence: ``GPU 0 (NVIDIA H200, sm_90)``."""
    return ", ".join(_named(gpu) for gpu in gpus) or "no GPU"


def _named(gpu: Gpu) -> str:
    known = [text for text in (gpu.name, f"sm_{sm_of(gpu)}" if sm_of(gpu) else None) if text]
    return f"GPU {gpu.index}" + (f" ({', '.join(known)})" if known else "")
