"""What lies around a deployment that the check asks about: model folders, engines, caches, locks, variables."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from toolkit.compat.model import (
    Cache,
    EngineFolder,
    EnvironmentView,
    Lock,
    ModelFolder,
    Mpi,
    Mps,
    TritonModel,
)
from toolkit.files import json_object

# Variables of the shell that rules ask about; nothing else is kept of it.
ASKED = re.compile(r"LD_LIBRARY_PATH|LD_PRELOAD|CUDA_(?:DEVICE_ORDER|VISIBLE_DEVICES|MPS_\w+)|SLURM_\w+|PMIX?_RANK")
# What chooses a kernel cache, and where it is when nothing does.
CACHES = {
    "TORCH_EXTENSIONS_DIR": ".cache/torch_extensions",
    "FLASHINFER_WORKSPACE_BASE": ".cache/flashinfer",
    "TRITON_CACHE_DIR": ".triton/cache",
    "TORCHINDUCTOR_CACHE_DIR": ".cache/torchinductor",
    "VLLM_CACHE_ROOT": ".cache/vllm",
    "HF_HOME": ".cache/huggingface",
}
LOCK_NAME = re.compile(r"lock|.+\.lock")
NETWORK = re.compile(
    r"nfs\d?|cifs|smb\d?|lustre|beegfs|gpfs|ceph|glusterfs|9p|fuse\.(?:sshfs|ceph-fuse|glusterfs|s3fs)"
)
RANK = re.compile(r"(?:.*_)?(rank\d+\.engine)")
MAX_ENTRIES = 20_000
MAX_HEADER_BYTES = 100 << 20  # safetensors' own limit
MPI_KINDS: tuple[tuple[str, Any], ...] = (
    (r"libmpich|libmpi_?cray|libmpi\.so\.12$", "mpich"),
    (r"libmpi\.so\.(?:20|40|80)|open-?mpi", "openmpi"),
    (r"impi|libmpi_mt\.so\.12", "intel"),
)


def variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that rules ask about."""
    return {name: value for name, value in environ.items() if ASKED.fullmatch(name)}


def model_folder(folder: Path) -> ModelFolder:
    """A Hugging Face folder with what is missing or damaged in it; reads names, sizes and headers alone."""
    weights = sorted(folder.glob("*.safetensors"))
    faults = [*_incomplete(folder), *_missing_shards(folder), *filter(None, map(_bad_header, weights))]
    sizes = [size for path in weights if (size := _size(path)) is not None]
    return ModelFolder(folder, tuple(faults), sum(sizes) or None, json_object(folder / "config.json"))


def _incomplete(folder: Path) -> Iterator[str]:
    """Parts of downloads: in the folder, or among the blobs of the Hugging Face cache it is a snapshot of."""
    places = [folder, folder / ".cache/huggingface/download"]
    if folder.parent.name == "snapshots":
        places.append(folder.parent.parent / "blobs")
    for place in places:
        for path in sorted(place.glob("*.incomplete")):
            yield f"{path.name} is a download that did not finish"


def _missing_shards(folder: Path) -> Iterator[str]:
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        return
    found = json_object(index)
    names = (found or {}).get("weight_map")
    if not isinstance(names, Mapping):
        yield f"{index.name} cannot be read"
        return
    for name in sorted({str(each) for each in names.values()}):
        if _size(folder / name) is None:
            yield f"{name} is missing"


def _bad_header(path: Path) -> str | None:
    """What is wrong with a safetensors file: eight bytes tell the header's length, the header what follows."""
    size = _size(path)
    if size is None:
        return f"{path.name} is a link to nothing"
    try:
        if not path.is_file():  # a pipe would be waited for without end
            return f"{path.name} is no file"
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > min(size - 8, MAX_HEADER_BYTES):
                return f"{path.name} ends inside its header"
            end = 8 + length + _end_of_data(json.loads(file.read(length)))
    except (OSError, ValueError, TypeError, LookupError, ArithmeticError, AttributeError, RecursionError):
        return f"{path.name} has a damaged header"
    return f"{path.name} is shorter than its header says" if end > size else None


def _end_of_data(header: Any) -> int:
    """Where the last tensor ends behind the header; whatever is not of that form raises."""
    offsets = [each["data_offsets"] for name, each in header.items() if name != "__metadata__"]
    return max((int(start_end[1]) for start_end in offsets), default=0)


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except (OSError, ValueError):  # a name with a NUL in it
        return None


def engine_folder(name: str, folder: Path) -> EngineFolder:
    """A built TensorRT-LLM engine as its files tell."""
    config = folder / "config.json"
    found = json_object(config)
    manifest = json_object(folder / "manifest.json")
    ranks = {match[1]: path for path in sorted(folder.glob("*.engine")) if (match := RANK.fullmatch(path.name))}
    rows = (manifest or {}).get("files")
    sizes = (
        {key: row.get("size") for key, row in rows.items() if isinstance(row, dict)} if isinstance(rows, dict) else {}
    )
    return EngineFolder(
        name,
        folder,
        found,
        None if found is not None else "cannot be read" if config.exists() else "is missing",
        {rank: size for rank, path in ranks.items() if (size := _size(path)) is not None},
        tuple(rank for rank, path in ranks.items() if not os.access(path, os.R_OK)),
        {key: size for key, size in sizes.items() if isinstance(size, int) and key.endswith(".engine")},
        manifest,
    )


def mpi_of(view: EnvironmentView) -> Mpi | None:
    """The MPI library that mpi4py of an environment would load; None: its files were not read."""
    if view.binaries is None:
        return None
    modules = [binary for binary in view.binaries.files if "mpi4py" in binary.extension.path.parts]
    libraries = [each for module in modules for each in module.resolution.libraries]
    paths = [each.path for each in libraries if each.path and each.name.startswith("libmpi")]
    found = [Mpi(kind_of_mpi(str(path.resolve())), str(path)) for path in paths]
    if found:  # a wheel has a module per MPI; the one that TensorRT-LLM needs counts where it is there
        return next((mpi for mpi in found if mpi.kind == "openmpi"), found[0])
    package = next((name for name in ("openmpi", "mpich", "impi_rt") if name in view.conda), None)
    kinds: dict[str, Any] = {"openmpi": "openmpi", "mpich": "mpich", "impi_rt": "intel"}
    return Mpi(kinds.get(package or ""), None, package)


def kind_of_mpi(path: str) -> Any:
    """Whose MPI a library file is, by its name and folder."""
    return next((kind for pattern, kind in MPI_KINDS if re.search(pattern, path)), "unknown")


def mps(environ: Mapping[str, str], daemon: bool | None) -> Mps:
    """What CUDA_MPS_PIPE_DIRECTORY leads to."""
    named = environ.get("CUDA_MPS_PIPE_DIRECTORY")
    return Mps(named, Path(named).is_dir() if named else None, daemon)


def caches(environ: Mapping[str, str], mountinfo: str) -> tuple[Cache, ...]:
    """The kernel caches that these variables choose, and the file systems they are on."""
    home = Path(environ.get("HOME") or "/")
    mounts = _mounts(mountinfo)
    found = []
    for variable, default in CACHES.items():
        path = Path(environ.get(variable) or home / default)
        if environ.get(variable) or path.exists():
            kind = _filesystem(path, mounts)
            found.append(Cache(path, variable, kind, bool(kind and NETWORK.fullmatch(kind))))
    return tuple(found)


def _mounts(text: str) -> list[tuple[Path, str]]:
    """Mount points with their file systems, deepest first. Source: proc_pid_mountinfo(5)."""
    found = []
    for line in text.splitlines():
        left, dash, right = line.partition(" - ")
        fields = left.split()
        if dash and len(fields) > 4:
            found.append((Path(fields[4].replace("\\040", " ")), right.split()[0]))
    return sorted(found, key=lambda each: len(each[0].parts), reverse=True)


def _filesystem(path: Path, mounts: Iterable[tuple[Path, str]]) -> str | None:
    return next((kind for point, kind in mounts if path == point or point in path.parents), None)


def locks(folders: Iterable[Path], proc: Path = Path("/proc"), now_s: float | None = None) -> tuple[Lock, ...]:
    """Lock files below kernel caches, with who holds them as far as this process can see."""
    paths = [path for folder in folders for path in _lock_files(folder)]
    if not paths:
        return ()
    now, boot = time.time() if now_s is None else now_s, _boot_s(proc)
    known, held = {}, _held(proc)
    for path in paths:
        with suppress(OSError):
            status = path.stat()
            key = (status.st_dev, status.st_ino)
            known[path] = Lock(path, now - status.st_mtime, key in held, bool(boot and status.st_mtime < boot))
    return tuple(known[path] for path in sorted(known))


def _lock_files(folder: Path) -> Iterator[Path]:
    seen = 0
    for place, _, names in os.walk(folder):
        for name in names:
            seen += 1
            if seen > MAX_ENTRIES:
                return
            if LOCK_NAME.fullmatch(name):
                yield Path(place) / name


def _boot_s(proc: Path) -> float | None:
    with suppress(OSError):
        match = re.search(r"^btime (\d+)$", (proc / "stat").read_text(), re.MULTILINE)
        return float(match[1]) if match else None
    return None


def _held(proc: Path) -> set[tuple[int, int]]:
    """Device and inode of every file that a process we can see has open; a lock is held by keeping it open."""
    found = set()
    for folder in proc.glob("[0-9]*/fd"):
        with suppress(OSError):
            for entry in os.scandir(folder):
                with suppress(OSError):
                    status = entry.stat()
                    found.add((status.st_dev, status.st_ino))
    return found


def triton_models(repository: Path) -> tuple[TritonModel, ...]:
    """Every config.pbtxt of a Triton repository, as far as rules ask."""
    return tuple(_triton(path) for path in sorted(repository.glob("*/config.pbtxt")))


def _triton(path: Path) -> TritonModel:
    try:
        text = re.sub(r"#[^\n]*", "", path.read_text(errors="replace")) if path.is_file() else ""
    except OSError:
        text = ""
    instances = re.findall(r"instance_group\s*:?\s*\[(.*?)\]\s*(?=\n\S|\Z)", text, re.DOTALL)
    return TritonModel(
        path,
        backend=_word(text, "backend"),
        platform=_word(text, "platform"),
        instance_gpus=any(re.search(r"\bgpus\s*:\s*\[\s*\d", group) for group in instances),
        gpu_device_ids=bool(re.search(r'"gpu_device_ids"', text)),
        warmup="model_warmup" in text,
    )


def _word(text: str, key: str) -> str | None:
    match = re.search(rf'^\s*{key}\s*:\s*"([^"]*)"', text, re.MULTILINE)
    return match[1] if match else None
