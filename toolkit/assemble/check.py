"""The check of this machine: reads environments and surroundings, asks ``compat``, and remembers the answer."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from toolkit import facts
from toolkit.assemble import paths, programs, surroundings
from toolkit.assemble.paths import Paths
from toolkit.compat import book, cases, judge
from toolkit.compat.files import is_stale
from toolkit.compat.model import EnvironmentView, Finding, Pair, PortHolder, Report, Surroundings
from toolkit.config.load import LoadedDeployment
from toolkit.environments import binaries, layout, loader, reading
from toolkit.environments.loader import Files
from toolkit.errors import ToolkitError
from toolkit.files import write_atomic
from toolkit.home import Home
from toolkit.host.model import Host
from toolkit.store import Store
from toolkit.supervise import ports

SCHEMA = 1
# Variables that decide what a Python process finds; and those of them that services get from coexist.
SEEN = ("HOME", "PYTHONPATH", "LD_LIBRARY_PATH", "LD_PRELOAD")
INHERITED = ("HOME", "LD_LIBRARY_PATH")


def check_environments(environments: Mapping[str, Path], host: Host, environ: Mapping[str, str] = os.environ) -> Report:
    """What the check says of environments by themselves, each named with its Python or folder."""
    views = read_views(environments, environ, host)
    mountinfo = _text(Path("/proc/self/mountinfo"))
    found = Surroundings(
        environ=surroundings.variables(environ),
        mpi=_mpi(views),
        locks=_locks(environ),
        caches=surroundings.caches(environ, mountinfo),
        mps=surroundings.mps(environ, host.mps_daemon),
    )
    return judge.judge(cases.of_environments(facts.load(), views, host, found))


def check_versions(versions: Mapping[str, str], gpu: str | None, host: Host | None) -> Report:
    """What the check says of versions that nobody installed.

    Raises: ToolkitError for a package, version or GPU that is none.
    """
    return judge.judge(cases.what_if(facts.load(), versions, gpu, host))


def check_deployment(
    deployment: LoadedDeployment,
    host: Host,
    home: Home,
    *,
    engines: Mapping[str, Path] | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Report:
    """What the check says of a deployment; the same question is answered from what was remembered.

    ``engines``: folders of engines that are built; None: the store's, by the names of the recipes. With a recorded host
    nothing of this machine is consulted.

    Raises: ManyFaultsError for every path of the deployment that is not there.
    """
    if host.recorded:
        return judge.judge(_elsewhere(deployment, host))
    found = paths.find(deployment, Store(home.root))
    pythons, images = environments_of(deployment), images_of(deployment)
    built = stored_engines(found, home) if engines is None else engines
    around = gather(deployment, found, host, home, engines=built, environ=environ)
    own = {name: environ[name] for name in INHERITED if name in environ}
    key = fingerprint(deployment, pythons, host, around, own, images=images)
    remembered = _recall(home, deployment.model.name, key)
    if remembered is not None:
        return remembered
    views = {**read_views(pythons, own, host, _own_library_paths(deployment)), **images}
    case = cases.of_deployment(facts.load(), views, host, replace(around, mpi=_mpi(views)), deployment.model)
    report = judge.judge(case)
    _remember(home, deployment.model.name, key, report)
    return report


def stored_engines(found: Paths, home: Home) -> dict[str, Path]:
    """The folder of the newest stored engine of each TensorRT-LLM recipe."""
    recipes = {name: each.recipe.model for name, each in found.engines.items()}
    wanted = {name: recipe.name for name, recipe in recipes.items() if recipe.builder == "trtllm"}
    entries = sorted(Store(home.root).entries() if wanted else (), key=lambda entry: entry.path.stat().st_mtime_ns)
    newest = {entry.name: entry.path for entry in entries}
    return {name: newest[recipe] for name, recipe in wanted.items() if recipe in newest}


def _elsewhere(deployment: LoadedDeployment, host: Host) -> Any:
    names = {service.environment or cases.OWN for service in deployment.model.services.values()}
    views = {name: EnvironmentView(name, read=False) for name in sorted(names)} | images_of(deployment)
    return cases.of_deployment(facts.load(), views, host, Surroundings(), deployment.model)


def environments_of(deployment: LoadedDeployment) -> dict[str, Path]:
    """The interpreter of every environment that a service runs in; coexist's own where one names none; no images."""
    names = {service.environment for service in deployment.model.services.values()}
    here = sorted(names - images_of(deployment).keys(), key=str)
    return {name or cases.OWN: paths.python(deployment, name) for name in here}


def images_of(deployment: LoadedDeployment) -> dict[str, EnvironmentView]:
    """What the deployment declares of each image that a service runs in."""
    used = {service.environment for service in deployment.model.services.values()}
    return {
        name: cases.of_image(name, each.image, str(each.interpreter), programs.stated(each))
        for name, each in deployment.model.environments.items()
        if name in used and each.image is not None
    }


def _own_library_paths(deployment: LoadedDeployment) -> dict[str, str]:
    """LD_LIBRARY_PATH of the environments whose services set one; the first service's where they differ."""
    found: dict[str, str] = {}
    for service in deployment.model.services.values():
        if "LD_LIBRARY_PATH" in service.env:
            found.setdefault(service.environment or cases.OWN, service.env["LD_LIBRARY_PATH"])
    return found


def read_views(
    environments: Mapping[str, Path],
    environ: Mapping[str, str],
    host: Host,
    library_paths: Mapping[str, str] | None = None,
) -> dict[str, EnvironmentView]:
    """Environments as rules see them, read from their files; nothing of them is imported or run."""
    machine, files = loader.read(), Files()
    driver = _text(Path("/proc/driver/nvidia/version"))
    own = {name: environ[name] for name in SEEN if name in environ}
    views = {}
    for name, python in environments.items():
        path = (library_paths or {}).get(name)
        found = reading.read(python, environ=own, ld_library_path=path, files=files)
        judged = binaries.read(found, machine=machine, files=files, driver_text="" if host.recorded else driver)
        views[name] = cases.view(name, found, judged)
    return views


def _mpi(views: Mapping[str, EnvironmentView]) -> dict[str, Any]:
    found = {name: surroundings.mpi_of(view) for name, view in views.items() if view.has("tensorrt-llm")}
    return {name: mpi for name, mpi in found.items() if mpi is not None}


def _locks(environ: Mapping[str, str]) -> Any:
    return surroundings.locks(cache.path for cache in surroundings.caches(environ, "") if cache.variable != "HF_HOME")


def gather(
    deployment: LoadedDeployment,
    found: Paths,
    host: Host,
    home: Home,
    *,
    engines: Mapping[str, Path],
    environ: Mapping[str, str],
) -> Surroundings:
    """What lies around a deployment on this machine."""
    services = deployment.model.services
    folders = {name: folder for name, each in services.items() if (folder := found.source(name, each)) is not None}
    own = {key: value for service in services.values() for key, value in service.env.items()}
    repositories = [found.models[name] for name, each in services.items() if each.runtime == "triton" and each.model]
    taken = ports.taken() if any(service.port for service in services.values()) else {}
    return Surroundings(
        environ=surroundings.variables(environ),
        engines={name: surroundings.engine_folder(name, folder) for name, folder in engines.items()},
        models={name: surroundings.model_folder(folder) for name, folder in folders.items()},
        recipes={name: each.recipe.model for name, each in found.engines.items()},
        locks=surroundings.locks([home.root / "cache" / deployment.model.name, *_folders(own)]),
        caches=surroundings.caches({**own, "HOME": "/nonexistent"}, _text(Path("/proc/self/mountinfo"))),
        triton=tuple(each for folder in repositories for each in surroundings.triton_models(folder)),
        ports=tuple(PortHolder(port, owner) for port, owner in taken.items() if not _ours(home, deployment, port)),
        mps=surroundings.mps({**environ, **own}, host.mps_daemon),  # what a service is told is what it gets
        unbuilt=tuple(name for name in found.engines if name not in engines),
    )


def _folders(variables: Mapping[str, str]) -> list[Path]:
    return [Path(variables[name]) for name in surroundings.CACHES if variables.get(name) and name != "HF_HOME"]


def _ours(home: Home, deployment: LoadedDeployment, port: int) -> bool:
    """Whether this very deployment runs and has the port: 'up' then restarts only what changed."""
    with suppress(OSError, ValueError, TypeError):
        status = json.loads((home.state(deployment.model.name) / "status.json").read_bytes())
        running = {service["name"] for service in status["services"] if service.get("pid")}
        return any(deployment.model.services[name].port == port for name in running if name in _names(deployment))
    return False


def _names(deployment: LoadedDeployment) -> set[str]:
    return set(deployment.model.services)


def fingerprint(
    deployment: LoadedDeployment,
    pythons: Mapping[str, Path],
    host: Host,
    around: Surroundings,
    environ: Mapping[str, str],
    *,
    images: Mapping[str, EnvironmentView],
) -> str:
    """One name for everything the answer depends on: the same name, the same answer."""
    parts = {
        "schema": SCHEMA,
        "facts": facts.load().version,
        "rules": [(each.name, _mark(each)) for each in sorted(book.RULES.parent.iterdir()) if each.is_file()],
        "deployment": deployment.model.model_dump(mode="json"),
        "environments": {name: marks(python, environ) for name, python in pythons.items()},
        "images": repr(images),
        "host": _host_marks(host),
        "surroundings": repr(replace(around, locks=())),
        "locks": [str(lock.path) for lock in around.locks if is_stale(lock)],
        "ld_cache": _mark(Path("/etc/ld.so.cache")),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


def marks(python: Path, environ: Mapping[str, str]) -> list[Any]:
    """What changes when something is installed into an environment: its folders, and each installer's record."""
    found = layout.locate(python)
    folders, _ = layout.with_pth(layout.folders(found, environ))
    return [str(python), _mark(python), *(mark for folder in folders for mark in _folder_marks(folder.path))]


def _folder_marks(folder: Path) -> list[Any]:
    try:
        with os.scandir(folder) as entries:
            records = sorted(entry.path for entry in entries if entry.name.endswith((".dist-info", ".egg-info")))
    except OSError:
        return [str(folder), None]
    return [str(folder), _mark(folder), *(_mark(Path(each) / "RECORD") or _mark(Path(each)) for each in records)]


def _mark(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def _host_marks(host: Host) -> dict[str, Any]:
    """The host without what changes from second to second: who holds memory counts, how much does not."""
    gpus = [gpu.model_dump(mode="json", exclude={"used_bytes", "holders", "mig"}) for gpu in host.gpus]
    held = [(gpu.uuid, sorted(str(each.pid) for each in gpu.holders)) for gpu in host.gpus]
    slices = [(gpu.uuid, [each.uuid for each in gpu.mig or ()]) for gpu in host.gpus]
    rest = host.model_dump(mode="json", exclude={"gpus", "limits"})
    return {"gpus": gpus, "held": held, "mig": slices, "rest": rest, "shm": host.limits.shm_bytes}


def _file(home: Home, name: str) -> Path:
    return home.root / "checks" / f"{name}.json"


def _recall(home: Home, name: str, key: str) -> Report | None:
    """The remembered answer; damaged or of another question, it is as if there were none."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        found = json.loads(_file(home, name).read_bytes())
        return _report(found["report"]) if found["fingerprint"] == key else None
    return None


def _report(found: Mapping[str, Any]) -> Report:
    return Report(
        verdict=found["verdict"],
        host=found["host"],
        environments=found["environments"],
        pairs=tuple(Pair(**{**pair, "needs": tuple(pair["needs"])}) for pair in found["pairs"]),
        findings=tuple(Finding(**{**each, "evidence": tuple(each["evidence"])}) for each in found["findings"]),
    )


def _remember(home: Home, name: str, key: str, report: Report) -> None:
    """Keeps the answer; a home that cannot be written only costs the next boot its time."""
    path = _file(home, name)
    with suppress(OSError, ToolkitError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, json.dumps({"schema": SCHEMA, "fingerprint": key, "report": asdict(report)}, default=str))


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
