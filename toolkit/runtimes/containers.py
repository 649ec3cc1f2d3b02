"""A launch inside a container: the same argv, with docker or podman around it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from toolkit.config.models import Environment
from toolkit.errors import ToolkitError
from toolkit.runtimes.base import Assignment, Container, Launch
from toolkit.units import format_cpu_list

ID_FILE, ENV_FILE = "container.id", "container.env"
# What a client of the engine may need of coexist's own variables to find it.
CLIENT = (
    *("PATH", "HOME", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "DBUS_SESSION_BUS_ADDRESS"),
    *("DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH", "DOCKER_API_VERSION"),
    *("CONTAINER_HOST", "CONTAINERS_CONF"),
)
# They speak of this machine's files; the image has its own.
OF_THIS_MACHINE = ("PATH", "TMPDIR", "LD_LIBRARY_PATH")
# NCCL and CUDA pin memory, TensorRT-LLM's ranks have deep stacks. Source: NVIDIA's containers say so when they start.
ULIMITS = {"memlock": -1, "stack": 67108864}
# Marks a folder as a cache (bford.info/cachedir); writing it also makes the folder, before the engine would as root.
CACHE_TAG, CACHE_TAG_TEXT = "CACHEDIR.TAG", "Signature: 8a477f597d28d172789f06886806bc55\n"


@dataclass(frozen=True)
class Box:
    """Where a container lies on this machine. Files keep their paths inside, so argv means the same there.

    ``user``: ``UID:GID``. ``memory_nodes``: what its memory is restricted to; None: nothing. ``own_env``: variables
    that the service sets itself.
    """

    name: str
    image: Environment
    user: str
    run_dir: Path
    cache_dir: Path
    read_only: tuple[Path, ...] = ()
    memory_nodes: tuple[int, ...] | None = None
    environ: Mapping[str, str] = field(default_factory=dict)
    own_env: Mapping[str, str] = field(default_factory=dict)


def contained(launch: Launch, box: Box, assignment: Assignment) -> Launch:
    """The launch, in a container of the box's image.

    Raises: ToolkitError when a variable or a path cannot be handed to the engine.
    """
    inside = _inside(launch.env, box, assignment)
    program = box.image.program
    client = {name: box.environ[name] for name in CLIENT if box.environ.get(name)}
    files = {
        **launch.files,
        box.run_dir / ENV_FILE: _env_file(box.name, inside),
        box.cache_dir / CACHE_TAG: CACHE_TAG_TEXT,
    }
    entrypoint, *arguments = launch.argv
    return replace(
        launch,
        argv=(
            *(program, "run", *_flags(box, assignment), *(("--workdir", str(launch.cwd)) if launch.cwd else ())),
            *("--entrypoint", entrypoint, box.image.image or "", *arguments),
        ),
        env=client,
        cwd=None,
        files=files,
        notes=(*launch.notes, f"runs in a container of {box.image.image}; its environment is in {ENV_FILE}"),
        container=Container(program, box.run_dir / ID_FILE, client, inside),
    )


def _flags(box: Box, assignment: Assignment) -> Iterator[str]:
    yield from ("--rm", "--init", "--pull", "never", "--network", "host")
    yield from ("--name", box.name, "--cidfile", str(box.run_dir / ID_FILE))
    yield from _gpus(box.image.program, assignment.device_uuids)
    if assignment.cpus:
        yield from ("--cpuset-cpus", format_cpu_list(assignment.cpus))
    if box.memory_nodes is not None:
        yield from ("--cpuset-mems", format_cpu_list(box.memory_nodes))
    yield from ("--shm-size", str(box.image.shm_size))
    for name, limit in {**ULIMITS, **box.image.ulimits}.items():
        yield from ("--ulimit", f"{name}={limit}")
    yield from ("--user", box.user, "--security-opt", "no-new-privileges")
    if box.image.program == "podman":
        yield from ("--userns", "keep-id")
    yield from ("--env-file", str(box.run_dir / ENV_FILE))
    yield from _volumes(box)


def _gpus(program: str, uuids: tuple[str, ...]) -> Iterator[str]:
    """docker reads ``--gpus`` as a line of CSV, so that a list needs quotes of its own; podman takes CDI names."""
    if not uuids:
        return
    if program == "docker":
        yield from ("--gpus", f'"device={",".join(uuids)}"')
    else:
        for uuid in uuids:
            yield from ("--device", f"nvidia.com/gpu={uuid}")


def _volumes(box: Box) -> Iterator[str]:
    for path in dict.fromkeys((*box.read_only, box.run_dir)):
        yield from ("-v", f"{_mountable(path)}:{path}:ro")
    yield from ("-v", f"{_mountable(box.cache_dir)}:{box.cache_dir}")
    for volume in box.image.volumes:
        yield from ("-v", volume)


def _mountable(path: Path) -> Path:
    if ":" in str(path):
        raise ToolkitError(
            "a path with a colon can't be given to a container", str(path), "Rename it, or link to it.", code="volume"
        )
    return path


def _inside(env: Mapping[str, str], box: Box, assignment: Assignment) -> dict[str, str]:
    """The variables in the container. ``USER``: nobody there knows the user's number, and libraries ask for the name.

    ``NVIDIA_VISIBLE_DEVICES``: images ask for every GPU, and get them where NVIDIA's is the default runtime.
    """
    kept = {name: value for name, value in env.items() if name not in OF_THIS_MACHINE or name in box.own_env}
    mine = {"HOME": str(box.cache_dir), "USER": env.get("USER", "coexist")}
    none = {} if assignment.device_uuids else {"NVIDIA_VISIBLE_DEVICES": "void"}
    return {**kept, **mine, **none, **box.own_env}


def _env_file(name: str, inside: Mapping[str, str]) -> str:
    """A line per variable, taken as it stands: there are no quotes, and no way to write a line break."""
    for variable, value in inside.items():
        if "\n" in value or "\0" in value:
            raise ToolkitError(
                f"'{variable}' has a line break, which a container's environment file can't hold",
                name,
                "Put it into a file, and name the file.",
                code="env_file",
            )
    return "".join(f"{variable}={value}\n" for variable, value in inside.items())
