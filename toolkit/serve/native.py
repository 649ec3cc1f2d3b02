"""A compiled package, run through the C interface of its own library.

torch's package loader holds Python's global lock while a package runs, so the event loop would stand still for a whole
prompt or step, and a first token would leave only after the step behind it. A call through ctypes lets the lock go.
"""

from __future__ import annotations

import ctypes
import zipfile
from collections.abc import Mapping, Sequence
from ctypes import byref, c_bool, c_char_p, c_size_t, c_void_p
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from toolkit.errors import ToolkitError
from toolkit.serve.scratch import Scratch

_PREFIX, _GIVE = "AOTInductorModelContainer", "UpdateUserManagedConstantBufferPairs"
_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype, _new_capsule.argtypes = ctypes.py_object, (c_void_p, c_char_p, c_void_p)
_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype, _pointer_of.argtypes = c_void_p, (ctypes.py_object, c_char_p)


class _Constant(ctypes.Structure):
    """``AOTInductorConstantMapEntry``. Source: torch/csrc/inductor/aoti_runtime/interface.h."""

    _fields_ = (("name", c_char_p), ("handle", c_void_p))


class Package(Protocol):
    """One phase, compiled. Not thread-safe."""

    def give(self, weights: Mapping[str, Tensor]) -> None:
        """The package uses these weights from now on, without a copy. Raises: KeyError when one is missing."""

    def run(self, inputs: Sequence[Tensor]) -> Tensor:
        """The one output. Raises: RuntimeError."""


def open_package(path: Path, device: str) -> Package:
    """The package in a file.

    Raises: ToolkitError when it cannot be loaded.
    """
    # A GPU's kernels are read from these files at their first launch, so they stay until the end.
    scratch = Scratch("coexist-engine-")
    library = _load(path, scratch.path)
    if not hasattr(library, _PREFIX + _GIVE) or Path(library._name).with_suffix(".json").exists():
        return LoaderPackage(path, device)
    return NativePackage(library, scratch, device)


class LoaderPackage:
    """By torch's loader: for libraries of older releases, or with operators that only the loader can call."""

    def __init__(self, path: Path, device: str) -> None:
        index = torch.device(device).index or 0 if device.startswith("cuda") else -1
        self._loader = torch._C._aoti.AOTIModelPackageLoader(str(path), "model", True, 1, index)

    def give(self, weights: Mapping[str, Tensor]) -> None:
        """As the protocol says."""
        wanted = {name: weights[name] for name in self._loader.get_constant_fqns()}
        self._loader.load_constants(wanted, False, True, True)  # into the active buffer, all of them, shared not copied

    def run(self, inputs: Sequence[Tensor]) -> Tensor:
        """As the protocol says."""
        result: Tensor = self._loader.run(list(inputs))[0]
        return result


class NativePackage:
    """By the library's own functions; other threads go on during a run."""

    def __init__(self, library: ctypes.CDLL, scratch: Scratch, device: str) -> None:
        self._library = library
        self._scratch = scratch
        self._device = torch.device(device)
        self._container = c_void_p()
        self._kept: list[Tensor] = []
        binaries = str(Path(library._name).parent).encode()
        create = getattr(library, f"{_PREFIX}CreateWithDevice")
        _check(create(byref(self._container), c_size_t(1), device.encode(), binaries))
        self._run = getattr(library, f"{_PREFIX}RunSingleThreaded")
        if self._device.type == "cpu":
            scratch.cleanup()

    def constants(self) -> dict[str, str]:
        """The library's name of every constant, and the weight that belongs there."""
        count = c_size_t()
        self._call("GetNumConstants", byref(count))
        indices = range(count.value)
        return {self._text("GetConstantName", i): self._text("GetConstantOriginalFQN", i) for i in indices}

    def give(self, weights: Mapping[str, Tensor]) -> None:
        """As the protocol says."""
        names = self.constants()
        self._kept = [weights[weight] for weight in names.values()]
        pairs = zip(names, _handles(self._kept), strict=True)
        entries = (_Constant * len(names))(*(_Constant(name.encode(), handle) for name, handle in pairs))
        self._call(_GIVE, entries, c_size_t(len(names)), c_bool(False), c_bool(True))

    def run(self, inputs: Sequence[Tensor]) -> Tensor:
        """As the protocol says; the reason of an error is on standard error."""
        handles = (c_void_p * len(inputs))(*_handles(inputs))
        result, count = c_void_p(), c_size_t(len(inputs))
        _check(self._run(self._container, handles, count, byref(result), c_size_t(1), self._stream(), None))
        # The function for one tensor would leave its handle behind, and with it the tensor's memory.
        tensor: Tensor
        (tensor,) = torch._C._aoti.alloc_tensors_by_stealing_from_void_ptrs([_new_capsule(result, None, None)])
        return tensor

    def _stream(self) -> c_void_p | None:
        if self._device.type == "cpu":
            return None
        return c_void_p(torch.cuda.current_stream(self._device).cuda_stream)

    def _text(self, function: str, index: int) -> str:
        text = c_char_p()
        self._call(function, c_size_t(index), byref(text))
        return (text.value or b"").decode()

    def _call(self, function: str, *arguments: object) -> None:
        _check(getattr(self._library, f"{_PREFIX}{function}")(self._container, *arguments))


def _check(status: int) -> None:
    if status:
        raise RuntimeError("the compiled package failed; its own message is on standard error")


def _handles(tensors: Sequence[Tensor]) -> list[int]:
    """Addresses of new tensor handles, which belong to whoever takes them."""
    capsules = torch._C._aoti.unsafe_alloc_void_ptrs_from_tensors(list(tensors))
    return [_pointer_of(capsule, None) for capsule in capsules]


def _load(path: Path, folder: Path) -> ctypes.CDLL:
    try:
        with zipfile.ZipFile(path) as archive:
            members = [name for name in archive.namelist() if "/data/aotinductor/" in name and not name.endswith("/")]
            files = [Path(archive.extract(name, folder)) for name in members]
        (library,) = (file for file in files if file.suffix == ".so")
        return ctypes.CDLL(str(library))
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise ToolkitError(
            f"the compiled package cannot be loaded: {error}", str(path), "Build it again: coexist build --force."
        ) from None
