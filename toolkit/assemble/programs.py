"""The server programs of a deployment: what is installed, and whether it is there before anything starts."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from toolkit import environments, facts, runtimes
from toolkit.assemble import boxes
from toolkit.config.load import LoadedDeployment
from toolkit.config.models import Deployment, Environment
from toolkit.errors import ManyFaultsError, ToolkitError
from toolkit.runtimes.base import Launch, Program
from toolkit.runtimes.environment import inherited


def installed(
    deployment: Deployment, pythons: Mapping[str, Path], environ: Mapping[str, str], *, here: bool = True
) -> dict[str, Program | None]:
    """The server program of each service, from the files of its environment; ``here`` False: nothing is looked at."""
    files = environments.Files()
    read: dict[Path, environments.Environment] = {}
    found = {}
    for name, service in deployment.services.items():
        named = deployment.environments.get(service.environment or "")
        runtime, python = runtimes.get(service.runtime), pythons[name]
        looked = here and (named is None or named.image is None) and runtime.looks_inside
        if looked and python not in read:
            read[python] = environments.read(python, environ={**inherited(environ), **service.env}, files=files)
        found[name] = runtime.program(read[python] if looked else None, python, stated(named))
    return found


def stated(named: Environment | None) -> dict[str, str]:
    """Versions that the deployment states of an environment, over what is known of its image."""
    if named is None:
        return {}
    return {**(facts.image_versions(named.image) if named.image else {}), **named.versions}


def check_programs(deployment: LoadedDeployment, shown: Mapping[str, Launch]) -> None:
    """Raises ManyFaultsError with every service whose program this machine lacks."""
    faults = [fault for name, launch in shown.items() if (fault := _fault(deployment, name, launch))]
    faults += [] if faults else [fault for name in shown if (fault := boxes.fault(deployment, name, shown[name]))]
    if faults:
        raise ManyFaultsError(tuple(faults))


def missing_noted(deployment: LoadedDeployment, shown: Mapping[str, Launch]) -> dict[str, Launch]:
    """The launches, with a note on each whose program this machine lacks: ``up`` would refuse it."""
    return {name: _noted(launch, _fault(deployment, name, launch)) for name, launch in shown.items()}


def _noted(launch: Launch, fault: ToolkitError | None) -> Launch:
    if fault is None:
        return launch
    return replace(launch, notes=(*launch.notes, f"it can't be started yet: {fault.what}. {fault.hint}"))


def _fault(deployment: LoadedDeployment, name: str, launch: Launch) -> ToolkitError | None:
    search, folder = launch.env.get("PATH", ""), launch.cwd or Path.cwd()
    # What else runs in a container is the image's.
    named = (launch.argv[0], *(() if launch.container else launch.programs))
    program = next((each for each in named if not _is_there(each, folder, search)), None)
    if program is None:
        return None
    service = deployment.model.services[name]
    key = f"services.{name}.argv" if service.argv else f"services.{name}.runtime"
    key = f"environments.{service.environment}.image" if launch.container else key
    hint = "Check the path and that it may be executed." if "/" in program else f"Install it; looked for in {search}"
    where = deployment.where(key)
    return ToolkitError(f"there is no program '{program}'", where, hint, code="no_program")


def _is_there(program: str, folder: Path, search: str) -> bool:
    if "/" in program:
        file = folder / program
        return file.is_file() and os.access(file, os.X_OK)
    return shutil.which(program, path=search) is not None
