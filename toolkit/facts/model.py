"""The nouns of release facts. Everything is frozen; unknown is None and is never guessed."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

# Majors from 1 to 19: a third digit too many is a slip, not a GPU of 90.0.
CAPABILITY = re.compile(r"(?:sm_?|compute_)?(1?[0-9])\.?([0-9])[af]?")
Abi = Literal["old", "new"]
FIRM = ("exact_tag", "docs", "release_notes", "pip_log", "issue", "pull_request")


@functools.lru_cache(maxsize=4096)
def version(text: str | None) -> Version | None:
    """The version a text names; None when it names none."""
    try:
        return Version(text) if text else None
    except InvalidVersion:
        return None


@functools.lru_cache(maxsize=4096)
def specifier(text: str) -> SpecifierSet | None:
    """The range a text names; None when it names none."""
    try:
        return SpecifierSet(text)
    except InvalidSpecifier:
        return None


def within(found: str | None, ranges: str | tuple[str, ...]) -> bool | None:
    """Whether a version is in any of the ranges, pre-releases included; None when that cannot be said."""
    known = version(found)
    sets = [specifier(text) for text in ((ranges,) if isinstance(ranges, str) else ranges)]
    if known is None or not sets or None in sets:
        return None
    return any(each.contains(known, prereleases=True) for each in sets if each is not None)


def nvidia_build(text: str | None) -> str | None:
    """The release that a build for NVIDIA's containers stands for: 2.7.0 of 2.7.0a0+79aa.nv25.4; None: another's."""
    known = version(text)
    own = known is not None and any(part.startswith("nv") for part in (known.local or "").split("."))
    return known.base_version if known and own else None


def minor(text: str | None) -> str | None:
    """Major and minor of a version: 12.5 of 12.5.1."""
    known = version(text)
    return f"{known.major}.{known.minor}" if known else None


def capability(text: str | None) -> int | None:
    """A compute capability as a number: 90 of 9.0, 90, sm90, sm_90 and sm_90a; None when it is none, as sm_900 is."""
    match = CAPABILITY.fullmatch((text or "").strip().lower())
    return int(match[1]) * 10 + int(match[2]) if match else None


@dataclass(frozen=True)
class Fact:
    """One fact with where it comes from. ``value``: a range, ranges (any of them), numbers or a word.

    ``exact``: the one full version that was read beside a range. ``status``: how firm the reading is.
    """

    value: Any
    status: str
    source: tuple[str, ...]
    note: str | None = None
    exact: str | None = None

    @property
    def firm(self) -> bool:
        """Whether it was read in the release itself or its own pages."""
        return self.status in FIRM

    @property
    def ranges(self) -> tuple[str, ...]:
        """The value as ranges of versions."""
        return tuple(self.value) if isinstance(self.value, (tuple, list)) else (str(self.value),)

    def accepts(self, found: str | None) -> bool | None:
        """Whether a version is in the range; None when that cannot be said."""
        return within(found, self.ranges)

    def __str__(self) -> str:
        if not isinstance(self.value, (tuple, list)):
            return str(self.value)
        return (", " if all(isinstance(each, int) for each in self.value) else " or ").join(map(str, self.value))


@dataclass(frozen=True)
class Release:
    """What is known of TensorRT-LLM releases that ``versions`` names. A missing fact is unknown."""

    versions: str
    facts: Mapping[str, Fact]

    def fact(self, name: str) -> Fact | None:
        """One fact by its name: torch, tensorrt, cuda, python, transformers, sm, fmha_sm, abi, modes, …"""
        return self.facts.get(name)

    @property
    def name(self) -> str:
        """The versions as a person writes them."""
        return self.versions.removeprefix("==")


@dataclass(frozen=True)
class FlashRow:
    """What is known of flash-attn releases (2, 3 and 4). Empty tuples and None: no source says.

    ``capability``: lowest and highest compute capability that the run-time check accepts, None: no bound. ``wheel_sm``:
    GPU code inside prebuilt wheels. ``jit``: compiled for the GPU at run time, with no ABI.
    """

    package: str
    versions: str
    source: tuple[str, ...]
    python: str | None = None
    torch: str | None = None
    cuda: str | None = None
    wheel_torch: tuple[str, ...] = ()
    wheel_cuda: tuple[str, ...] = ()
    wheel_python: tuple[str, ...] = ()
    wheel_abi: tuple[Abi, ...] = ()
    capability: tuple[int | None, int | None] = (None, None)
    capability_unsure: tuple[int, int] | None = None
    wheel_sm: tuple[int, ...] = ()
    jit: bool = False
    prebuilt: bool | None = None
    cutlass_dsl: str | None = None
    released: str | None = None
    note: str | None = None

    @property
    def name(self) -> str:
        """The versions as a person writes them."""
        return self.versions.removeprefix("==")

    def runs_on(self, sm: int) -> bool | None:
        """Whether the library accepts a GPU; None where sources disagree."""
        lowest, highest = self.capability
        if self.capability_unsure and self.capability_unsure[0] <= sm <= self.capability_unsure[1]:
            return None
        return (lowest is None or sm >= lowest) and (highest is None or sm <= highest)

    def wheel_has_code_for(self, sm: int) -> bool:
        """Whether the prebuilt wheel has code for a GPU: of its major, and not of a later minor."""
        return self.jit or not self.wheel_sm or any(sm // 10 == arch // 10 and arch <= sm for arch in self.wheel_sm)


@dataclass(frozen=True)
class TorchAbi:
    versions: str
    abi: Abi
    source: tuple[str, ...]
    cuda: tuple[str, ...] = ()


@dataclass(frozen=True)
class Hiding:
    """Releases of flash-attn 2 that keep flash-attn-4 from being imported."""

    versions: str
    source: tuple[str, ...]


@dataclass(frozen=True)
class Driver:
    """From which driver on a CUDA release (``12.4``) or a whole major (``12``) runs."""

    cuda: str
    driver: str
    source: tuple[str, ...]


@dataclass(frozen=True)
class Architecture:
    """The first CUDA release with code for an architecture."""

    sm: int
    cuda: str
    source: tuple[str, ...]


@dataclass(frozen=True)
class Claim:
    """A sentence people quote about two releases, and what the facts say of it."""

    tensorrt_llm: str
    flash_attn: str
    claim: str
    supported: tuple[str, ...]
    unknown: tuple[str, ...]
    source: tuple[str, ...]


@dataclass(frozen=True)
class Closeness:
    """Whether TensorRT-LLM's own fused attention has to be off when flash-attn is this close."""

    level: str
    fmha_off: Literal["no", "unknown"]
    why: str
    needs: tuple[str, ...]
    source: tuple[str, ...]


@dataclass(frozen=True)
class AttentionRule:
    """A limit of fused attention in releases; ``sm``: lowest and highest capability it works on, None: no bound."""

    id: str
    versions: str
    rule: str
    status: str
    source: tuple[str, ...]
    sm: tuple[int | None, int | None] = (None, None)


@dataclass(frozen=True)
class HeadSize:
    """A head size without a fused kernel, by report."""

    versions: str
    head_size: int
    kv: str
    sm: tuple[int, int]
    source: tuple[str, ...]


@dataclass(frozen=True)
class Fp8Checkpoints:
    """Quantisations that fp8 context FMHA works with."""

    algorithms: tuple[str, ...]
    source: tuple[str, ...]


@dataclass(frozen=True)
class Facts:
    """All facts. ``version``: changes whenever a row does."""

    version: str
    sources: Mapping[str, str]
    releases: tuple[Release, ...]
    flash: tuple[FlashRow, ...]
    torch_abi: tuple[TorchAbi, ...]
    hides_flash_attn_4: Hiding
    minor_drivers: tuple[Driver, ...]
    drivers: tuple[Driver, ...]
    architectures: tuple[Architecture, ...]
    claims: tuple[Claim, ...]
    closeness: tuple[Closeness, ...]
    attention: tuple[AttentionRule, ...]
    head_sizes: tuple[HeadSize, ...]
    fp8_checkpoints: Fp8Checkpoints

    def trtllm(self, found: str | None) -> Release | None:
        """What is known of an installed TensorRT-LLM; None: no row speaks of that version."""
        return next((row for row in self.releases if within(found, row.versions)), None)

    def flash_attn(self, package: str, found: str | None) -> FlashRow | None:
        """What is known of an installed flash-attn package; None: no row speaks of that version."""
        return next((row for row in self.flash if row.package == package and within(found, row.versions)), None)

    def abi_of_torch(self, found: str | None, cuda: str | None) -> TorchAbi | None:
        """The C++ ABI of a torch wheel of the public index; None: no row speaks of it."""
        return next((row for row in self.torch_abi if _speaks(row, found, cuda)), None)

    def cite(self, keys: tuple[str, ...]) -> str:
        """The sources that keys stand for, as one text."""
        return "; ".join(self.sources.get(key, key) for key in keys)


def _speaks(row: TorchAbi, found: str | None, cuda: str | None) -> bool:
    return within(found, row.versions) is True and (not row.cuda or minor(cuda) in row.cuda)
