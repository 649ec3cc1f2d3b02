"""The binaries of an environment, judged as its own process would load them: after ``import torch``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from toolkit.environments import extensions, fatbin, linking, loader, mismatch, origins, torch_files
from toolkit.environments.extensions import Extension, Selection
from toolkit.environments.fatbin import GpuCode
from toolkit.environments.linking import Library, Process, Resolution
from toolkit.environments.loader import Files, Loader, Search
from toolkit.environments.mismatch import Mismatch
from toolkit.environments.model import Environment, TorchFacts
from toolkit.environments.origins import Origin

GLOBAL_DEPENDENCIES = "lib/libtorch_global_deps.so"
# What 'import torch' loads by full path from the nvidia-* wheels beside it, in this order, once libcudart is in the
# process or a library is not found: (folder below nvidia/, library). Source: _preload_cuda_deps in torch/__init__.py.
CUDA_WHEELS = (
    ("cublas", "libcublasLt"),
    ("cublas", "libcublas"),
    ("cudnn", "libcudnn"),
    ("cuda_nvrtc", "libnvrtc"),
    ("cuda_nvrtc", "libnvrtc-builtins"),
    ("cuda_runtime", "libcudart"),
    ("cuda_cupti", "libcupti"),
    ("cufft", "libcufft"),
    ("curand", "libcurand"),
    ("nvjitlink", "libnvJitLink"),
    ("cusparse", "libcusparse"),
    ("cusparselt", "libcusparseLt"),
    ("cusolver", "libcusolver"),
    ("nccl", "libnccl"),
    ("nvshmem", "libnvshmem_host"),
    ("cufile", "libcufile"),
)
# What a package's own __init__ loads by full path before its compiled files: package, then folder and names there.
LOADED_FIRST = {
    "tensorrt": ("tensorrt_libs", "libnvinfer*.so*", "libnvonnxparser*.so*"),
    "tensorrt_bindings": ("tensorrt_libs", "libnvinfer*.so*", "libnvonnxparser*.so*"),
    "tensorrt_llm": ("tensorrt_libs", "libnvinfer*.so*", "libnvonnxparser*.so*"),
}
DRIVER_VERSION = re.compile(r"(?:Kernel Module(?: for \w+)?\s+|libcuda\.so\.)(\d+(?:\.\d+)+)")


@dataclass(frozen=True)
class Binary:
    """One compiled file that counts. ``cuda_major``: of the CUDA libraries it names; None: it names none.

    ``after``: files of its own package that are taken to be loaded before it, since the loader would not find them.
    """

    extension: Extension
    resolution: Resolution
    gpu_code: GpuCode
    after: tuple[Path, ...] = ()
    cuda_major: int | None = None
    origins: tuple[Origin, ...] = ()
    mismatches: tuple[Mismatch, ...] = ()


@dataclass(frozen=True)
class DriverLibrary:
    """The libcuda.so.1 that the process would load, and the kernel driver it has to agree with.

    ``version``: from the name of the real file. ``compat``: it comes from a CUDA compat package.
    """

    found: Library
    version: str | None
    compat: bool
    driver: str | None


@dataclass(frozen=True)
class Binaries:
    """What loading shows. ``torch``: the files ``import torch`` loads itself, in order; their libraries too."""

    interpreter: Resolution | None
    torch: tuple[Resolution, ...]
    torch_mismatches: tuple[Mismatch, ...]
    torch_gpu_code: GpuCode
    files: tuple[Binary, ...]
    selection: Selection
    driver: DriverLibrary


def read(
    environment: Environment,
    *,
    machine: Loader | None = None,
    files: Files | None = None,
    everything: bool = False,
    driver_text: str = "",
) -> Binaries:
    """The binaries of an environment that matter, judged; ``everything``: all its extension modules.

    ``driver_text``: what /proc/driver/nvidia/version says; empty: no driver is known.
    """
    files = files or Files()
    process, interpreter = start(environment, machine or loader.read(), files)
    torch = tuple(import_torch(process, environment))
    chosen = extensions.select(environment, files, everything=everything)
    return Binaries(
        interpreter,
        torch,
        tuple(found for resolution in torch for found in mismatch.find(resolution, environment.torch)),
        _torch_gpu_code(environment.torch),
        tuple(_judge(extension, process, environment, chosen) for extension in chosen.extensions),
        chosen,
        driver_library(process, driver_text),
    )


def start(environment: Environment, machine: Loader, files: Files) -> tuple[Process, Resolution | None]:
    """The environment's interpreter as a process, before it imports anything."""
    search = Search(machine, loader.library_path(environment.library_path))
    layout = environment.layout
    return linking.start(search, files, layout.base_executable or layout.executable, environment.preload)


def import_torch(process: Process, environment: Environment) -> Iterator[Resolution]:
    """Loads into a process what ``import torch`` loads, and says of each file how that went."""
    if environment.torch is None:
        return
    folder = environment.torch.folder
    if process.files.identity(folder / GLOBAL_DEPENDENCIES):
        yield _load_global_dependencies(process, environment, folder / GLOBAL_DEPENDENCIES)
    for module in sorted(folder.glob("_C.*.so"))[:1]:
        yield process.load(module)


def _load_global_dependencies(process: Process, environment: Environment, path: Path) -> Resolution:
    """What torch does first; where the loader finds no CUDA by itself, the wheels' are loaded and it tries again."""
    alone = process.copy().load(path, public=True)
    if alone.missing:
        _load_cuda_wheels(process, environment)
    found = process.load(path, public=True)
    if not alone.missing and any(library.name.startswith("libcudart") for library in found.libraries):
        _load_cuda_wheels(process, environment)
    return found


def _load_cuda_wheels(process: Process, environment: Environment) -> None:
    for path in _cuda_wheels(environment):
        process.load(path)


def _cuda_wheels(environment: Environment) -> Iterator[Path]:
    for folder, library in CUDA_WHEELS:
        for place in environment.folders:
            below = place.path / "nvidia"
            found = [
                *sorted(below.glob(f"{folder}/lib/{library}.so.*")),
                *sorted(below.glob(f"cu[0-9]*/lib/{library}.so.*")),
            ]
            if found:
                yield found[0]
                break


def _judge(extension: Extension, imported: Process, environment: Environment, chosen: Selection) -> Binary:
    process = imported.copy()
    for path in _loaded_first(extension, environment):
        process.load(path)
    alone = process.copy().load(extension.path)
    after = tuple(_own_files(alone, extension, chosen)) if alone.missing else ()
    for path in after:
        process.load(path)
    resolution = process.load(extension.path) if after else alone
    distribution = environment.find(extension.distribution) if extension.distribution else None
    stated = origins.of(distribution) if distribution else ()
    return Binary(
        extension,
        resolution,
        fatbin.read(extension.path),
        after,
        torch_files.cuda_major(process.files.elf(extension.path).needed),
        stated,
        mismatch.find(resolution, environment.torch, stated),
    )


def _own_files(resolution: Resolution, extension: Extension, chosen: Selection) -> Iterator[Path]:
    """Missing libraries that are files of the same package: a package loads those itself, by their full paths."""
    missing = {library.name for library in resolution.missing}
    for other in chosen.extensions:
        if other.path.name in missing and other.package == extension.package:
            yield other.path


def _loaded_first(extension: Extension, environment: Environment) -> Iterator[Path]:
    for package, (folder, *patterns) in LOADED_FIRST.items():
        own, place = environment.package_folder(package), environment.package_folder(folder)
        if own and place and own in extension.path.parents:
            for pattern in patterns:
                yield from sorted(place.glob(pattern))


def _torch_gpu_code(torch: TorchFacts | None) -> GpuCode:
    return fatbin.read(torch.folder / "lib/libtorch_cuda.so") if torch else GpuCode()


def driver_library(process: Process, driver_text: str = "") -> DriverLibrary:
    """The libcuda.so.1 that the process finds by name, with the version of the kernel driver beside it."""
    found = process.copy().find("libcuda.so.1")
    real = found.path.resolve() if found.path else None
    named = DRIVER_VERSION.search(real.name) if real else None
    driver = DRIVER_VERSION.search(driver_text)
    compat = real is not None and any("compat" in part for part in (*real.parts, *(found.path or real).parts))
    return DriverLibrary(found, named[1] if named else None, compat, driver[1] if driver else None)
