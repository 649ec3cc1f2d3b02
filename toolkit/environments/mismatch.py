"""Why a file does not fit the process it is loaded into: symbols say most, then library names, then metadata. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from toolkit.demangle import Abi
from toolkit.environments import origins, torch_files
from toolkit.environments.evidence import Age, Owner, owner_of
from toolkit.environments.linking import Resolution, Unresolved
from toolkit.environments.model import TorchFacts
from toolkit.environments.origins import Origin

Reason = Literal[
    "cxx11_abi",
    "release",
    "torch_without_cuda",
    "cuda_major",
    "driver_missing",
    "library_missing",
    "library_too_old",
    "unreadable",
]
TORCH_CUDA = {"libc10_cuda.so", "libtorch_cuda.so", "libtorch_cuda_linalg.so"}
LIBRARY_OWNERS: tuple[tuple[re.Pattern[str], Owner], ...] = (
    (re.compile(r"lib(?:torch|c10|shm|caffe2)\w*\.so.*"), "torch"),
    (re.compile(r"lib(?:tensorrt_llm|th_common|nvinfer_plugin_tensorrt_llm)\w*\.so.*"), "tensorrt_llm"),
    (re.compile(r"lib(?:nvinfer|nvonnxparser)\w*\.so.*"), "tensorrt"),
    (re.compile(r"lib(?:cuda|nvidia-ml)\.so.*"), "cuda_driver"),
    (re.compile(r"lib(?:cu|nv|nccl)\w*\.so.*"), "cuda"),
    (re.compile(r"lib(?:mpi|open-rte|open-pal|pmpi)\w*\.so.*"), "mpi"),
    (re.compile(r"libpython.*"), "python"),
)


@dataclass(frozen=True)
class Mismatch:
    """One reason why a file does not fit.

    ``guilty``: the file that asks for what is not there. ``asked`` and ``here``: what it needs and what the process
    has, as versions, ABIs or names. ``built_for``: an older or newer release of ``owner`` than the one here;
    ``told_by``: whether symbols, names of libraries, or only metadata say so.
    """

    reason: Reason
    guilty: Path
    owner: Owner | None
    asked: str
    here: str | None = None
    built_for: Age | None = None
    told_by: Literal["symbols", "libraries", "metadata"] | None = None
    symbols: tuple[Unresolved, ...] = ()


def find(resolution: Resolution, torch: TorchFacts | None, stated: Iterable[Origin] = ()) -> tuple[Mismatch, ...]:
    """Every reason why a resolved file does not fit, the strongest evidence first; empty: it fits.

    Where a library cannot be read, what it exports is not known, so that no symbol is called missing.
    """
    told = tuple(stated)
    return (
        *(Mismatch("unreadable", path, None, why) for path, why in resolution.errors),
        *(() if resolution.errors else _by_symbols(resolution, torch, told)),
        *_by_libraries(resolution, torch, told),
        *_by_versions(resolution),
    )


def _by_symbols(resolution: Resolution, torch: TorchFacts | None, told: tuple[Origin, ...]) -> Iterator[Mismatch]:
    groups: dict[tuple[Path, Owner | None, bool], list[Unresolved]] = {}
    for symbol in resolution.unresolved:
        by_abi = _abi_of(symbol, torch) is not None
        groups.setdefault((symbol.asked_by, owner_of(symbol.symbol, symbol.version), by_abi), []).append(symbol)
    for (path, owner, by_abi), symbols in sorted(groups.items(), key=lambda item: not item[0][2]):
        if by_abi:
            asked = next(abi for s in symbols if (abi := _abi_of(s, torch)))
            here: Abi = "old" if asked == "new" else "new"
            yield Mismatch("cxx11_abi", path, owner, asked, here, None, "symbols", tuple(symbols))
        else:
            yield _release(path, owner, symbols, torch, told)


def _abi_of(symbol: Unresolved, torch: TorchFacts | None) -> Abi | None:
    """The ABI a missing symbol asks for, when that is what is wrong with it."""
    proof = symbol.evidence
    if proof is None or proof.asked_abi is None:
        return None
    against = torch is not None and torch.cxx11_abi not in {None, proof.asked_abi} and proof.owner == "torch"
    return proof.asked_abi if proof.kind == "cxx11_abi" or against else None


def _release(
    path: Path, owner: Owner | None, symbols: list[Unresolved], torch: TorchFacts | None, told: tuple[Origin, ...]
) -> Mismatch:
    ages = [s.evidence.built_for for s in symbols if s.evidence and s.evidence.built_for]
    first = next((s.evidence for s in symbols if s.evidence and s.evidence.built_for), symbols[0].evidence)
    asked = first.asked if first else symbols[0].symbol
    here = first.exported[0] if first and first.exported else None
    if ages:
        common = ages[0] if len(set(ages)) == 1 else None
        return Mismatch("release", path, owner, asked, here, common, "symbols", tuple(symbols))
    stated = _stated_age(torch, told) if owner == "torch" else None
    return Mismatch("release", path, owner, asked, here, stated, "metadata" if stated else None, tuple(symbols))


def _stated_age(torch: TorchFacts | None, told: tuple[Origin, ...]) -> Age | None:
    ages = {origins.age(o.torch, torch.version) for o in told if o.torch} if torch else set()
    return ages.pop() if len(ages) == 1 else None


def _by_libraries(resolution: Resolution, torch: TorchFacts | None, told: tuple[Origin, ...]) -> Iterator[Mismatch]:
    for path in dict.fromkeys(library.asked_by for library in resolution.libraries):
        names = [library.name for library in resolution.libraries if library.asked_by == path]
        lost = [library.name for library in resolution.missing if library.asked_by == path]
        without_cuda = [name for name in lost if name in TORCH_CUDA]
        if without_cuda and torch and torch.cuda is None:
            stated = _stated_age(torch, told)
            by: Literal["metadata", "libraries"] = "metadata" if stated else "libraries"
            asked = ", ".join(without_cuda)
            yield Mismatch("torch_without_cuda", path, "torch", asked, torch.version, stated, by)
        major = torch_files.cuda_major(tuple(names))
        if major and torch and torch.cuda_linked and major != torch.cuda_linked:
            direction: Age = "older" if major < torch.cuda_linked else "newer"
            yield Mismatch("cuda_major", path, "cuda", str(major), str(torch.cuda_linked), direction, "libraries")
        for name in lost:
            if name not in without_cuda or torch is None or torch.cuda is not None:
                owner = library_owner(name)
                reason: Reason = "driver_missing" if owner == "cuda_driver" else "library_missing"
                yield Mismatch(reason, path, owner, name)


def _by_versions(resolution: Resolution) -> Iterator[Mismatch]:
    for missing in resolution.missing_versions:
        owner = owner_of("", missing.version)
        here = str(missing.library)
        yield Mismatch("library_too_old", missing.asked_by, owner, missing.version, here, "newer", "symbols")


def library_owner(name: str) -> Owner | None:
    """Whose library it is, by its file name; None: nobody known."""
    return next((owner for pattern, owner in LIBRARY_OWNERS if pattern.fullmatch(name)), None)
