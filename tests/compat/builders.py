"""Small cases for the rules: one environment, one GPU, one service, each changed where a test needs it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toolkit import facts
from toolkit.compat import cases, judge
from toolkit.compat.model import Case, EnvironmentView, Finding, Role, Surroundings
from toolkit.config.models import Deployment, Service
from toolkit.environments.binaries import Binaries, Binary, DriverLibrary
from toolkit.environments.extensions import Extension, Selection
from toolkit.environments.fatbin import GpuCode, Target
from toolkit.environments.linking import Library, Resolution
from toolkit.environments.mismatch import Mismatch
from toolkit.host.model import ContainerLimits, Core, Gpu, Host, NumaNode

FACTS = facts.load()
SITE = Path("/env/lib/python3.10/site-packages")


def gpu(index: int = 0, sm: str = "9.0", **changes: Any) -> Gpu:
    base: dict[str, Any] = {
        "index": index,
        "uuid": f"GPU-{index:04d}",
        "name": "NVIDIA H200",
        "compute_capability": sm,
        "memory_bytes": 140 << 30,
        "used_bytes": 0,
        "numa_nodes": (0,),
        "cpus": (0, 1, 2, 3),
        "compute_mode": "Default",
    }
    return Gpu(**{**base, **changes})


def host(*gpus: Gpu, **changes: Any) -> Host:
    base: dict[str, Any] = {
        "driver_version": "590.44.01",
        "cuda_driver_version": "13.1",
        "gpus": gpus or (gpu(),),
        "cores": tuple(Core(cpus=(at,), numa_node=0) for at in range(8)),
        "cpus_allowed": tuple(range(8)),
        "numa": (NumaNode(node=0, cpus=tuple(range(8))),),
        "memory_bytes": 512 << 30,
        "limits": ContainerLimits(shm_bytes=16 << 30),
    }
    return Host(**{**base, **changes})


def view(name: str = "trtllm", packages: Mapping[str, str | None] | None = None, **changes: Any) -> EnvironmentView:
    found = {"torch": "2.4.0", "tensorrt-llm": "0.12.0"} if packages is None else packages
    base: dict[str, Any] = {
        "executable": "/env/bin/python",
        "python": "3.10.14",
        "packages": found,
        "torch": found.get("torch"),
        "torch_cuda": "12.4",
        "torch_abi": "old",
    }
    return EnvironmentView(name, **{**base, **changes})


def service(runtime: str = "trtllm", **changes: Any) -> Service:
    base: dict[str, Any] = {"runtime": runtime, "environment": "trtllm", "gpus": 1, "port": 8001}
    if runtime == "trtllm" and "model" not in changes:
        base["engine"] = "llm"
    return Service.model_validate({**base, **changes})


def case(
    *views: EnvironmentView,
    services: Mapping[str, Service] | None = None,
    on: Host | None = None,
    around: Surroundings | None = None,
) -> Case:
    named = {each.name: each for each in views or (view(),)}
    place, found = on or host(), around or Surroundings()
    if services is None:
        return cases.of_environments(FACTS, named, place, found)
    deployment = Deployment(version=1, name="test", services=dict(services))
    return cases.of_deployment(FACTS, named, place, found, deployment)


def findings(of: Case) -> dict[str, Finding]:
    """The first finding of each id."""
    found: dict[str, Finding] = {}
    for each in judge.find(of):
        found.setdefault(each.id, each)
    return found


def binaries(*files: Binary, **changes: Any) -> Binaries:
    none = DriverLibrary(Library("libcuda.so.1", Path()), None, False, None)
    base: dict[str, Any] = {
        "interpreter": None,
        "torch": (),
        "torch_mismatches": (),
        "torch_gpu_code": GpuCode(),
        "files": files,
        "selection": Selection((), (), 0, True),
        "driver": none,
    }
    return Binaries(**{**base, **changes})


def binary(
    *mismatches: Mismatch,
    package: str | None = "flash-attn",
    name: str = "flash_attn_2_cuda.so",
    libraries: tuple[Library, ...] = (),
    code: GpuCode | None = None,
) -> Binary:
    path = SITE / name
    resolution = Resolution(path, libraries)
    extension = Extension(path, "package", distribution=package)
    return Binary(extension, resolution, code or GpuCode(), mismatches=mismatches)


def code(*archs: int) -> GpuCode:
    """GPU code of one container with machine code for these architectures."""
    return GpuCode(((frozenset(Target("cubin", arch) for arch in archs), 1),))


def role(name: str = "what-if") -> Role:
    return Role(name, name)
