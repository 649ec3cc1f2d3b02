"""Whether a compiled package holds fused attention: read from its bytes, never from the graph it was made of."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

# Names under which fused attention is called or compiled: PyTorch's operators and their C entry points, cuDNN's,
# FlashAttention's, TensorRT-LLM's, and the kernels that Triton makes of flex attention.
FUSED_NAME = re.compile(
    r"\w*(?:scaled_dot_product_\w*attention|flash_attention|flash_attn|efficient_attention|cudnn_attention"
    r"|cudnn_sdpa|flex_attention|flex_decoding|fmha|mem_eff_attn)\w*"
)
_ELF_MAGIC = b"\x7fELF"


@dataclass(frozen=True, order=True)
class Evidence:
    """One name of fused attention: the member of the package it is in, and how it was found there.

    ``kind``: ``symbol`` (of a library or a GPU binary) or ``text`` (source, extern-kernel node, metadata, other bytes).
    """

    member: str
    kind: str
    name: str


@dataclass(frozen=True)
class Reading:
    """What reading a package gave; ``symbols`` and ``members`` say how much was looked at."""

    evidence: tuple[Evidence, ...]
    symbols: int
    members: int

    @property
    def fused(self) -> bool:
        return bool(self.evidence)

    @property
    def operators(self) -> tuple[str, ...]:
        """The fused operators themselves, sorted: what is called, without kernels that are only named after it."""
        called = {e.name for e in self.evidence if e.kind == "symbol" and e.name.startswith("aoti_torch_")}
        return tuple(sorted(called or {e.name for e in self.evidence}))


def read_package(package: bytes) -> Reading:
    """Everything in a ``.pt2`` archive that names fused attention.

    Raises: ValueError when this is no archive, or it has no compiled library: then nothing is proven.
    """
    try:
        archive = zipfile.ZipFile(io.BytesIO(package))
    except zipfile.BadZipFile:
        raise ValueError("this is no compiled package") from None
    members = [(name, archive.read(name)) for name in archive.namelist() if not name.endswith("/")]
    libraries = [content for name, content in members if name.endswith(".so")]
    if not libraries or not all(content.startswith(_ELF_MAGIC) for content in libraries):
        raise ValueError("the package holds no compiled library")
    evidence: set[Evidence] = set()
    symbols = 0
    for name, content in members:
        names = _symbols(content) if content.startswith(_ELF_MAGIC) else None
        if names is None:
            evidence.update(Evidence(name, "text", found) for found in fused_names(_printable(content)))
        else:
            symbols += len(names)
            evidence.update(Evidence(name, "symbol", found) for found in fused_names(names))
    return Reading(tuple(sorted(evidence)), symbols, len(members))


def fused_names(texts: Sequence[str]) -> Iterator[str]:
    """Every name of fused attention in these texts."""
    for text in texts:
        yield from (match[0] for match in FUSED_NAME.finditer(text))


def _symbols(content: bytes) -> list[str] | None:
    """All symbol names of an ELF file; None when it cannot be read as one."""
    # Imported when something is built: every supervisor would carry 2 MiB of it for nothing.
    from elftools.common.exceptions import ELFError  # noqa: PLC0415
    from elftools.elf.elffile import ELFFile  # noqa: PLC0415
    from elftools.elf.sections import SymbolTableSection  # noqa: PLC0415

    try:
        tables = [s for s in ELFFile(io.BytesIO(content)).iter_sections() if isinstance(s, SymbolTableSection)]
        return [symbol.name for table in tables for symbol in table.iter_symbols()]
    except ELFError:
        return None


def _printable(content: bytes) -> list[str]:
    return [content.decode("latin-1")]
