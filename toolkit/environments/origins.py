"""What a distribution says it was built for: pins, names of wheels, versions, build records. Weaker than symbols."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from packaging.version import InvalidVersion, Version

from toolkit.demangle import Abi
from toolkit.environments import requirements
from toolkit.environments.evidence import Age
from toolkit.environments.model import Distribution
from toolkit.files import json_object

# 'flash_attn-2.7.4.post1+cu12torch2.6cxx11abiFALSE-cp310-…whl', '0.2.6+pt26cu124', '0.24.1+cu128'
TORCH_IN_NAME = re.compile(r"(?:torch|pt)(\d)\.?(\d+)(?:\.(\d+))?")
CUDA_IN_NAME = re.compile(r"cu(?:da)?(\d\d)\d?(?!\d)")
ABI_IN_NAME = re.compile(r"cxx11abi(TRUE|FALSE)", re.IGNORECASE)


@dataclass(frozen=True)
class Origin:
    """One statement of what a distribution was built for; ``text`` is where it was read, as written."""

    source: Literal["requires", "url", "version", "build_record"]
    text: str
    torch: str | None = None
    cuda: int | None = None
    cxx11_abi: Abi | None = None


def of(distribution: Distribution) -> tuple[Origin, ...]:
    """Every statement about torch, CUDA or the C++11 ABI that a distribution makes; a URL's name may lie."""
    found = (*_required(distribution), *_named(distribution), *_recorded(distribution))
    return tuple(origin for origin in found if origin.torch or origin.cuda or origin.cxx11_abi)


def _required(distribution: Distribution) -> Iterator[Origin]:
    for text in distribution.requires:
        requirement = requirements.parse(text) if text.lower().startswith("torch") else None
        if requirement and requirement.name.lower() == "torch" and requirement.marker is None:
            exact = [s.version for s in requirement.specifier if s.operator in {"==", "==="} and "*" not in s.version]
            yield from (Origin("requires", text, torch=version) for version in exact)


def _named(distribution: Distribution) -> Iterator[Origin]:
    if distribution.source_url:
        yield _from_name("url", distribution.source_url.rsplit("/", 1)[-1])
    local = (distribution.version or "").partition("+")[2]
    if local:
        yield _from_name("version", local)


def _from_name(source: Literal["url", "version"], text: str) -> Origin:
    torch, cuda, abi = TORCH_IN_NAME.search(text), CUDA_IN_NAME.search(text), ABI_IN_NAME.search(text)
    return Origin(
        source,
        text,
        ".".join(part for part in torch.groups() if part) if torch else None,
        int(cuda[1]) if cuda else None,
        ("new" if abi[1].upper() == "TRUE" else "old") if abi else None,
    )


def _recorded(distribution: Distribution) -> Iterator[Origin]:
    """xformers writes down what it was compiled with."""
    if distribution.name == "xformers":
        version = (json_object(distribution.folder / "xformers/cpp_lib.json") or {}).get("version")
        if isinstance(version, dict):
            torch, cuda = version.get("torch"), version.get("cuda")
            yield Origin(
                "build_record",
                "xformers/cpp_lib.json",
                torch if isinstance(torch, str) else None,
                cuda // 100 if isinstance(cuda, int) else None,
            )


def age(built_for: str, installed: str | None) -> Age | None:
    """Whether a release is older or newer than the installed one, as far as both are spelled out; None: neither."""
    try:
        one, two = Version(built_for).release, Version(installed or "").release
    except InvalidVersion:
        return None
    length = min(len(one), len(two))
    if one[:length] == two[:length]:
        return None
    return "older" if one[:length] < two[:length] else "newer"
