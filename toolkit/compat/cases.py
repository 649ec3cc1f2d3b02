"""Cases from what was read: a deployment, named environments, or versions that nobody installed. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from packaging.utils import canonicalize_name

from toolkit.compat.gpus import matches
from toolkit.compat.model import FLASH_PACKAGES, Case, EnvironmentView, Role, Surroundings
from toolkit.config.models import Deployment, Service
from toolkit.environments.binaries import Binaries
from toolkit.environments.model import Environment
from toolkit.errors import ToolkitError
from toolkit.facts import Facts
from toolkit.facts.model import capability, version
from toolkit.host.model import Gpu, Host
from toolkit.names import suggestion

WHAT_IF = "what-if"
OWN = "coexist"  # the environment of a service that names none
PACKAGES = (
    "tensorrt-llm",
    "torch",
    "tensorrt",
    "transformers",
    "vllm",
    "sglang",
    "nvidia-cutlass-dsl",
    *FLASH_PACKAGES,
)
SETTINGS = ("cuda", "python", "driver")
OTHER_NAMES = {"flash-attn-hopper": "flashattn-hopper", "flash-attn3": "flash-attn-3", "flash-attn4": "flash-attn-4"}
OTHER_NAMES |= {"trtllm": "tensorrt-llm", "flash-attention": "flash-attn", "pytorch": "torch"}
NEEDS_GPU = {"trtllm", "triton"}


def view(name: str, found: Environment, binaries: Binaries | None) -> EnvironmentView:
    """An environment as rules see it."""
    layout, torch = found.layout, found.torch
    executable = layout.executable or layout.prefix
    return EnvironmentView(
        name=name,
        executable=str(executable),
        python=layout.python_version,
        packages={each.name: each.version for each in found.distributions},
        requires={each.name: each.requires for each in found.distributions},
        conflicts=found.conflicts,
        problems=found.problems,
        conda={each.name: each.version for each in found.conda},
        torch=torch.version if torch else None,
        torch_cuda=torch.cuda if torch else None,
        torch_abi=torch.cxx11_abi if torch else None,
        binaries=binaries,
        library_path=found.library_path,
    )


def of_image(name: str, image: str, python: str, versions: Mapping[str, str]) -> EnvironmentView:
    """The environment in a container image, as far as the deployment declares its versions."""
    stated = {OTHER_NAMES.get(each, each): found for each, found in _normalised(versions).items()}
    packages = {each: found for each, found in stated.items() if each not in (*SETTINGS, "tritonserver")}
    torch = packages.get("torch")
    return EnvironmentView(
        name,
        executable=python,
        python=stated.get("python"),
        packages=packages,
        torch=torch,
        torch_cuda=stated.get("cuda") or _cuda_of(torch),
        hypothetical=True,
        read=bool(packages),
        image=image,
    )


def _normalised(versions: Mapping[str, str]) -> dict[str, str]:
    return {str(canonicalize_name(written)): found for written, found in versions.items()}


def of_environments(
    facts: Facts, views: Mapping[str, EnvironmentView], host: Host | None, surroundings: Surroundings
) -> Case:
    """The case of environments by themselves: each may get any GPU of the host."""
    gpus = host.gpus if host else ()
    roles = tuple(
        Role(name, name, gpus=gpus, needed=1 if gpus and view.torch_cuda else 0) for name, view in views.items()
    )
    return Case(facts, views, roles, host, surroundings)


def of_deployment(
    facts: Facts,
    views: Mapping[str, EnvironmentView],
    host: Host | None,
    surroundings: Surroundings,
    deployment: Deployment,
) -> Case:
    """The case of a deployment: one role per service."""
    roles = tuple(_role(name, service, host) for name, service in deployment.services.items())
    return Case(facts, views, roles, host, surroundings, deployment)


def _role(name: str, service: Service, host: Host | None) -> Role:
    needed = max(service.gpus.size, 1 if service.runtime in NEEDS_GPU else 0)
    gpus = _open_to(service, host.gpus if host else ()) if needed else ()
    return Role(name, service.environment or OWN, service.runtime, service, gpus, needed)


def _open_to(service: Service, gpus: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
    """The GPUs that a service names, or all of them."""
    if not service.gpus.devices:
        return gpus
    return tuple(gpu for gpu in gpus if any(matches(device, gpu) for device in service.gpus.devices))


def what_if(facts: Facts, versions: Mapping[str, str], gpu: str | None, host: Host | None = None) -> Case:
    """The case of versions in one environment, on a GPU of a compute capability, else on the GPUs of the host.

    Raises: ToolkitError for a package, version or GPU that is none.
    """
    packages, settings = _sorted(versions)
    torch = packages.get("torch")
    _refuse_two_cudas(torch, settings.get("cuda"))
    view = EnvironmentView(
        WHAT_IF,
        python=settings.get("python"),
        packages=packages,
        torch=torch,
        torch_cuda=settings.get("cuda") or _cuda_of(torch),
        hypothetical=True,
    )
    place = hypothetical_host(gpu, settings.get("driver")) if gpu else host
    gpus = place.gpus if place else ()
    return Case(facts, {WHAT_IF: view}, (Role(WHAT_IF, WHAT_IF, gpus=gpus, needed=1 if gpus else 0),), place)


def _sorted(versions: Mapping[str, str]) -> tuple[dict[str, str | None], dict[str, str]]:
    packages: dict[str, str | None] = {}
    settings: dict[str, str] = {}
    for written, found in versions.items():
        name = str(canonicalize_name(written))
        name = OTHER_NAMES.get(name, name)
        if version(found) is None:
            hint = "Write it as a release does, such as 0.12.0."
            raise ToolkitError(f"'{found}' is no version", f"--versions {written}", hint, code="version")
        if name in settings or name in packages:
            raise ToolkitError(f"{name} is named twice", "--versions", "Name one version of each.", code="version")
        if name in SETTINGS:
            settings[name] = found
        elif name in PACKAGES:
            packages[name] = found
        else:
            raise _unknown(written, name)
    return packages, settings


def _unknown(written: str, name: str) -> ToolkitError:
    hint = suggestion(name, (*PACKAGES, *SETTINGS))
    return ToolkitError(f"nothing is known of '{written}'", "--versions", hint, code="package")


def _refuse_two_cudas(torch: str | None, cuda: str | None) -> None:
    """Raises: ToolkitError when a torch such as 2.6.0+cu126 is named with another CUDA."""
    own, given = version(_cuda_of(torch)), version(cuda)
    if own and given and any(one != other for one, other in zip(own.release, given.release, strict=False)):
        hint = "Leave cuda= out, or name the torch of that CUDA."
        raise ToolkitError(f"torch {torch} is built with CUDA {own}, not {given}", "--versions", hint, code="version")


def _cuda_of(torch: str | None) -> str | None:
    """The CUDA release in a local version such as 2.6.0+cu126."""
    known = version(torch)
    local = (known.local or "") if known else ""
    digits = local.removeprefix("cu")
    return f"{digits[:-1]}.{digits[-1]}" if local.startswith("cu") and digits.isdecimal() and len(digits) > 2 else None


def hypothetical_host(gpu: str, driver: str | None = None) -> Host:
    """A host of one GPU of a compute capability, of which nothing else is known.

    Raises: ToolkitError when the text is no compute capability.
    """
    sm = capability(gpu)
    if sm is None:
        hint = "Write it as sm_90 or 9.0; see 'coexist host' for the GPUs of this machine."
        raise ToolkitError(f"'{gpu}' is no compute capability", "--gpu", hint, code="gpu")
    device = Gpu(
        index=0,
        uuid="GPU-what-if",
        name=None,
        compute_capability=f"{sm // 10}.{sm % 10}",
        memory_bytes=None,
        used_bytes=None,
    )
    return Host(gpus=(device,), driver_version=driver, cores=(), cpus_allowed=(), recorded=True)
