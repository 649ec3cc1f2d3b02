"""Containers of a deployment: what of this machine each one is given, and whether they can be run at all."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from toolkit import affinity
from toolkit.config.load import LoadedDeployment
from toolkit.config.models import Environment
from toolkit.errors import ToolkitError
from toolkit.host.model import Host
from toolkit.plan.model import ServicePlan
from toolkit.runtimes.base import Context, Launch
from toolkit.runtimes.builtin import RUN
from toolkit.runtimes.containers import Box

TIMEOUT_S = 20.0
BUILTIN = ("torch", "flash")


def box(host: Host, context: Context, image: Environment, planned: ServicePlan) -> Box:
    """Where the container of a service lies. Memory is restricted only where the plan binds it and the host allows."""
    policy = affinity.choose(host, planned.numa_nodes, planned.memory_bind)
    return Box(
        name=f"coexist-{context.deployment.name}-{context.name}",
        image=image,
        user=f"{os.getuid()}:{os.getgid()}",
        run_dir=context.run_dir,
        cache_dir=context.cache_dir,
        read_only=tuple(_read_only(context)),
        memory_nodes=policy.nodes if policy.kind == "bind" else None,
        environ=context.environ,
        own_env=context.service.env,
    )


def _read_only(context: Context) -> Iterator[Path]:
    folders = (context.engine_dir, context.model_dir, context.tokenizer_dir)
    yield from (folder for folder in folders if folder is not None and folder.is_absolute())
    if context.service.runtime in BUILTIN:
        yield RUN.parents[1]  # run.py makes the package importable by its folder alone


Run = Callable[[Sequence[str], Mapping[str, str]], str | None]


def run_client(argv: Sequence[str], env: Mapping[str, str]) -> str | None:
    """None when the command succeeded, else the last line of what it said."""
    try:
        done = subprocess.run(
            argv, env=dict(env), stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT_S, check=False
        )
    except OSError as error:
        return error.strerror or str(error)
    except subprocess.TimeoutExpired:
        return f"no answer within {TIMEOUT_S:g} s"
    said = done.stderr.decode("utf-8", "replace").strip().splitlines()
    return None if done.returncode == 0 else said[-1] if said else f"exit status {done.returncode}"


def fault(deployment: LoadedDeployment, name: str, launch: Launch, run: Run = run_client) -> ToolkitError | None:
    """Why the container of a service could not be started; None: its engine answers and has the image."""
    container, service = launch.container, deployment.model.services[name]
    if container is None:
        return None
    image = deployment.model.environments[service.environment or ""].image or ""
    where, program = deployment.where(f"environments.{service.environment}.image"), container.program
    if said := run((program, "version", "--format", "{{.Server.Version}}"), container.client_env):
        hint = f"Start it, or see that this user may use it: {program} version"
        return ToolkitError(f"{program} does not answer: {said}", where, hint, code="container_engine")
    if said := run((program, "image", "inspect", "--format", "{{.Id}}", image), container.client_env):
        hint = f"Images are not pulled at a start. Fetch it: {program} pull {image}"
        return ToolkitError(f"the image '{image}' is not here ({said})", where, hint, code="no_image")
    return None
