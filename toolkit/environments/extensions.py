"""The compiled files of an environment that can break a server: whose they are, and why they count."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from toolkit.environments.loader import Files
from toolkit.environments.metadata import record_text
from toolkit.environments.model import Distribution, Environment

# Packages whose compiled files are judged whatever they need, by the first part of their path.
PACKAGES = re.compile(
    r"(?:flash_attn\w*|flash_attn_2_cuda|hopper|tensorrt_llm\w*|trtllm\w*|vllm\w*|sgl_kernel\w*|sglang\w*|flashinfer\w*"
    r"|xformers\w*|torchvision\w*|torchaudio\w*|triton\w*|tensorrt(?:_\w+)?|transformer_engine\w*|deep_gemm\w*"
    r"|deep_ep\w*|causal_conv1d\w*|mamba_ssm\w*|selective_scan\w*|bitsandbytes\w*|torchao\w*|lmcache\w*|nixl\w*"
    r"|mpi4py\w*|libth_common\w*)(?:[./].*)?"
)
TORCH_LIBRARY = re.compile(r"lib(?:torch|c10)(?:_\w+)?\.so")
# Private copies that a package's own files bring in; they are judged through those.
PRIVATE = re.compile(r"(?:^|/)(?:[\w.-]+\.libs|nvidia|torch/lib|torch/bin|torch/test)/")
RECORD_LINE = re.compile(r'^"?([^",\n]+\.so(?:\.[\w.]*)?)"?,([^,\n]*),(\d{0,18})\r?$', re.MULTILINE)
CPYTHON_TAG = re.compile(r"\.cpython-3(\d+)t?-")
SHARED = re.compile(r".+\.so(?:\.\d+)*")
MAX_FILES = 20_000


@dataclass(frozen=True)
class Extension:
    """One compiled file that counts.

    ``package``: the first part of its path below ``sys.path``. ``reason``: ``package`` (that one is known to matter),
    ``torch`` (it needs torch's libraries) or ``asked``. ``recorded_bytes``: the size its installer wrote down; None:
    nothing written. ``size_bytes``: what it has now.
    """

    path: Path
    reason: str
    package: str = ""
    distribution: str | None = None
    recorded_bytes: int | None = None
    size_bytes: int | None = None

    @property
    def changed(self) -> bool:
        """Whether the file is not the one that was installed."""
        return None not in {self.recorded_bytes, self.size_bytes} and self.recorded_bytes != self.size_bytes

    @property
    def python(self) -> str | None:
        """The one Python release that can import it, such as ``3.11``; None: its name ties it to none."""
        tag = CPYTHON_TAG.search(self.path.name)
        return f"3.{tag[1]}" if tag else None


@dataclass(frozen=True)
class Selection:
    """The compiled files that count, sorted by path.

    ``missing``: files that an installer recorded and that are gone. ``looked_at``: how many files were looked at;
    ``complete`` is false when there were more than the limit.
    """

    extensions: tuple[Extension, ...]
    missing: tuple[Extension, ...]
    looked_at: int
    complete: bool


def select(environment: Environment, files: Files, *, everything: bool = False) -> Selection:
    """The compiled files of an environment that matter to its servers; ``everything``: all extension modules."""
    chosen: dict[Path, Extension] = {}
    missing: list[Extension] = []
    looked_at = 0
    for candidate, relative in _candidates(environment):
        looked_at += 1
        if looked_at > MAX_FILES:
            break
        if candidate.path in chosen or PRIVATE.search(relative):
            continue
        reason = _reason(candidate.path, relative, files) or ("asked" if everything else None)
        if reason is None:
            continue
        known = files.identity(candidate.path)
        found = Extension(
            candidate.path,
            reason,
            relative.split("/", 1)[0],
            candidate.distribution,
            candidate.recorded_bytes,
            files.elf(candidate.path).size_bytes if known else None,
        )
        if known:
            chosen[found.path] = found
        else:
            missing.append(found)
    extensions = tuple(chosen[path] for path in sorted(chosen))
    return Selection(extensions, tuple(missing), looked_at, looked_at <= MAX_FILES)


def _reason(path: Path, relative: str, files: Files) -> str | None:
    if PACKAGES.fullmatch(relative):
        return "package"
    if relative.startswith("torch/"):
        return None
    return "torch" if any(map(TORCH_LIBRARY.fullmatch, files.elf(path).needed)) else None


def _candidates(environment: Environment) -> Iterator[tuple[Extension, str]]:
    """Every compiled file, once by its installer's record, then those in known packages that no record names."""
    for distribution in environment.distributions:
        yield from _recorded(distribution)
    seen: set[str] = set()  # a package in an earlier folder hides its namesake
    for folder in environment.folders:
        yield from _in_known_packages(folder.path, seen)


def _recorded(distribution: Distribution) -> Iterator[tuple[Extension, str]]:
    text = record_text(distribution)
    for name, _, size in RECORD_LINE.findall(text):
        path = Path(os.path.normpath(distribution.folder / name))
        yield Extension(path, "", "", distribution.name, int(size) if size else None), name


def _in_known_packages(folder: Path, seen: set[str]) -> Iterator[tuple[Extension, str]]:
    try:
        with os.scandir(folder) as entries:
            names = sorted({entry.name for entry in entries} - seen)
    except OSError:
        return
    seen.update(names)
    for name in names:
        if SHARED.fullmatch(name):
            yield Extension(folder / name, ""), name
        elif PACKAGES.fullmatch(name) and "." not in name:
            for path in _shared_below(folder / name):
                yield Extension(path, ""), path.relative_to(folder).as_posix()


def _shared_below(folder: Path) -> Iterator[Path]:
    for place, inner, names in os.walk(folder):
        inner.sort()
        yield from (Path(place) / name for name in sorted(names) if SHARED.fullmatch(name))
