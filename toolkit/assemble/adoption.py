"""Where an adopted engine is to run, as far as a deployment, an environment and this host say it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toolkit.assemble import paths
from toolkit.build.trtllm_adopt import Surroundings
from toolkit.build.trtllm_versions import Installed, versions
from toolkit.config import load
from toolkit.config.load import LoadedDeployment
from toolkit.errors import ToolkitError
from toolkit.host.model import Host
from toolkit.names import suggestion


def surroundings(
    host: Host, environ: Mapping[str, str], *, config: Path | None, engine: str | None, python: Path | None
) -> Surroundings:
    """What to judge an engine against; without ``config`` it is this host, and the environment of ``python`` if named.

    Raises: ToolkitError when the deployment is not sound, or has no engine of that name (or several and none is named).
    """
    capabilities = tuple(dict.fromkeys(gpu.compute_capability for gpu in host.gpus if gpu.compute_capability))
    if config is None:
        found = versions(python, environ) if python else Installed(None, None)
        return Surroundings(found.trtllm, found.tensorrt, capabilities)
    deployment = load.deployment(config)
    name = _engine_name(deployment, engine)
    use = paths.engine(deployment, name)
    found = versions(python or use.python, environ)
    recipe = use.recipe.model if use.adopted is None else None
    return Surroundings(
        found.trtllm, found.tensorrt, capabilities, _gpus(deployment, name), recipe, _settings(deployment, name)
    )  # fmt: skip


def of_engine(deployment: LoadedDeployment, name: str, python: Path, environ: Mapping[str, str]) -> Surroundings:
    """Where an engine of a deployment is to run, but for the GPUs' capabilities; an image's versions are declared."""
    environment = deployment.model.environments.get(deployment.model.engines[name].environment or "")
    if environment is not None and environment.image is not None:
        stated = environment.versions
        found = Installed(stated.get("tensorrt-llm") or stated.get("tensorrt_llm"), stated.get("tensorrt"))
    else:
        found = versions(python, environ)
    gpus, settings = _gpus(deployment, name), _settings(deployment, name)
    return Surroundings(found.trtllm, found.tensorrt, gpus=gpus, settings=settings)


def _engine_name(deployment: LoadedDeployment, engine: str | None) -> str:
    names = list(deployment.model.engines)
    if engine is None and len(names) == 1:
        return names[0]
    if engine not in names:
        what = f"no engine '{engine}'" if engine else f"the deployment has {len(names)} engines"
        hint = suggestion(engine, names) if engine else f"Name one with --engine: {', '.join(names) or 'none'}."
        raise ToolkitError(what, str(deployment.file), hint, code="unknown_engine")
    return engine


def _gpus(deployment: LoadedDeployment, engine: str) -> int | None:
    """GPUs of the smallest user; None: no user says."""
    users = [service for service in deployment.model.services.values() if service.engine == engine]
    return min((service.gpus.size for service in users if service.gpus.size), default=None)


def _settings(deployment: LoadedDeployment, engine: str) -> dict[str, Any]:
    services = deployment.model.services.items()
    return {name: service.options for name, service in services if service.engine == engine and service.options}
